-- SPDX-License-Identifier: BSD-2-Clause
-- For wrk: every response must be the file, byte for byte. The file's path is the script's argument.
local threads = {}

function setup(thread)
    table.insert(threads, thread)
end

function init(args)
    local file = assert(io.open(args[1], "rb"))
    content = file:read("*a")
    file:close()
    good, bad = 0, 0
end

function response(status, headers, body)
    if status == 200 and body == content then good = good + 1 else bad = bad + 1 end
end

function done()
    local good, bad = 0, 0
    for _, thread in ipairs(threads) do
        good = good + thread:get("good")
        bad = bad + thread:get("bad")
    end
    print("verified " .. good .. " bad " .. bad)
end

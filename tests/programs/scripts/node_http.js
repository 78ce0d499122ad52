// SPDX-License-Identifier: BSD-2-Clause
// node_http.js server ADDRESS PORT            answers a POST with the length and the SHA-256 of what it got, ends by SIGTERM
// node_http.js client ADDRESS PORT REQUESTS   many at a time, half on kept connections; prints "verified REQUESTS"
'use strict';
const http = require('http');
const crypto = require('crypto');

const [what, address, port, requests] = process.argv.slice(2);
const hash = (data) => crypto.createHash('sha256').update(data).digest('hex');
const sizes = [0, 1, 100, 1448, 5000, 65536, 300000];

if (what === 'server') {
    const server = http.createServer((request, response) => {
        const parts = [];
        request.on('data', (part) => parts.push(part));
        request.on('end', () => {
            const body = Buffer.concat(parts);
            // A timer, a tick and a thread of the pool between question and answer.
            crypto.randomBytes(16, () => setTimeout(() => setImmediate(() => {
                response.end(body.length + ' ' + hash(body) + ' ' + 'x'.repeat(body.length % 5000));
            }), 1));
        });
    });
    server.listen(+port, address);
    process.on('SIGTERM', () => { server.closeAllConnections(); server.close(); });
} else {
    const keeping = new http.Agent({ keepAlive: true, maxSockets: 8 }), closing = new http.Agent({ keepAlive: false });
    let next = 0, verified = 0, failed = 0;
    const ask = () => {
        if (next >= +requests) return;
        const number = next++, body = crypto.randomBytes(sizes[number % sizes.length]);
        const done = (ok, why) => {
            if (ok) verified++; else { failed++; console.error(number, why); }
            ask();
        };
        const request = http.request(
            { host: address, port: +port, method: 'POST', agent: number % 2 ? keeping : closing, timeout: 10000 }, (response) => {
                let text = '';
                response.setEncoding('latin1');
                response.on('data', (part) => { text += part; });
                response.on('end', () => done(
                    text === body.length + ' ' + hash(body) + ' ' + 'x'.repeat(body.length % 5000), text.slice(0, 100)));
            });
        request.on('timeout', () => request.destroy(new Error('timeout')));
        request.on('error', (error) => done(false, error.message));
        request.end(body);
    };
    for (let i = 0; i < 16; i++) ask();
    process.on('exit', () => {
        console.log('verified ' + verified + ', failed ' + failed);
        if (failed !== 0) process.exitCode = 1;
    });
    const wait = setInterval(() => {
        if (verified + failed === +requests) { clearInterval(wait); keeping.destroy(); }
    }, 10);
}

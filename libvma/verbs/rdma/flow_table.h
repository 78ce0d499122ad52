// SPDX-License-Identifier: BSD-2-Clause
// The flow rules of a QP. Several FlowSpecs may share a rule of the adapter, so the table counts a rule's
// users.
//
// Rules name the netdev's MAC, so a new MAC replaces all of them.
//
// A rule that another process has is not made (rule_claims.h).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "libvma/runtime/lock.h"
#include "libvma/verbs/rdma/rule_claims.h"
#include "libvma/verbs/rdma/rules.h"

namespace vma::verbs::rdma {

class FlowTable {
  public:
    // The calls that make and destroy rules: ibv_create_flow() for one QP (null and errno on failure) and
    // ibv_destroy_flow().
    struct Calls {
        std::function<ibv_flow*(ibv_flow_attr*)> create;
        std::function<void(ibv_flow*)> destroy;
    };
    // `device`: for messages. `claims`: null, where no other process has the device.
    FlowTable(Calls calls, RuleOptions options, std::uint8_t port, std::string device,
              RuleClaims* claims = nullptr);
    ~FlowTable();
    FlowTable(const FlowTable&) = delete;
    FlowTable& operator=(const FlowTable&) = delete;

    // The caller returns the handle to remove(). The rule gets the tag where it can only ever serve this
    // spec, and where the device takes tags. The adapter cannot change an existing rule, so a rule that had
    // to lose its tag would be absent for a moment. EBUSY: another process has the rule.
    Result<Flow*> add(const FlowSpec& spec, std::uint32_t tag);
    void remove(Flow* flow) noexcept;
    // Moves the rule `flow` of `from` here (Device::take_flow). EBUSY: other specs share it.
    //
    // The adapter would give a frame to both QPs while both had the rule, and to the kernel while neither
    // had. So the new rule goes before the old one, which then goes, and a rule of the ordinary place
    // follows.
    Result<Flow*> take(FlowTable& from, Flow* flow, std::uint32_t tag);

    // Makes unicast rules for another MAC, each new rule before the old one goes. A rule that the device
    // refuses keeps its old MAC.
    void set_mac(const MacAddress& mac) noexcept;
    // add() answers ENODEV from now on.
    void close() noexcept;
    // Takes all rules out of the adapter, too: from now on the kernel gets the frames. Handles stay valid.
    void withdraw() noexcept;
    // Forgets all rules without a call, in a forked child: the rules are the parent's.
    void forget() noexcept;
    std::size_t rules() const noexcept;

  private:
    struct Rule {
        ibv_flow* made = nullptr;  // null once withdrawn
        unsigned users = 0;
        std::uint32_t tag = 0;
        bool over = false;              // it has kept the place of a rule that moves
        RuleClaims* claimed = nullptr;  // by which this process has it
    };
    struct Handle : Flow {
        HwRule key;
    };
    HwRule for_adapter(const HwRule& key) const noexcept;
    ibv_flow* make(const HwRule& key, std::uint32_t tag, bool over = false);
    void drop(ibv_flow* made) noexcept;
    bool claim(const HwRule& key, Rule& rule) const noexcept;
    void drop(const HwRule& key, Rule& rule) noexcept;  // with its claim

    const Calls calls_;
    RuleOptions options_;
    const std::uint8_t port_;
    const std::string device_;
    RuleClaims* const claims_;
    // A leaf lock; add() and remove() run on any thread, the others on the internal thread.
    mutable Lock lock_;
    std::map<HwRule, Rule> rules_;  // unicast keys have no MAC, because the MAC changes
    bool closed_ = false;
    bool tags_refused_ = false;
};

}  // namespace vma::verbs::rdma

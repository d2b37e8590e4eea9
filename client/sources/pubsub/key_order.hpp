// Keeps the order of a key after one of its messages was given back.
//
// The service then sends that message again, and all that follow it. But some of those may already
// be on their way, and would be handled before it. Each of them is given back as well, once. When a
// message comes that was given back before, the service has gone back to it.
#pragma once

#include <map>
#include <set>
#include <string>

namespace inbox::pubsub {

class KeyOrder {
  public:
    // Messages must be given in the order in which they were sent.
    void given_back(const std::string& key, const std::string& message_id);

    // A message arrived. Returns false if it has overtaken another one of its key, and must be
    // given back.
    bool may_pass(const std::string& key, const std::string& message_id);

    void clear() { given_back_.clear(); }

  private:
    // Bounds the memory for keys whose messages went to other consumers.
    static constexpr std::size_t max_keys = 10'000;
    std::map<std::string, std::set<std::string>> given_back_;
};

}  // namespace inbox::pubsub

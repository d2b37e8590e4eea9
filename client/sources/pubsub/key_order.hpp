// Keeps the order of a key when one of its messages was given back.
//
// The service then sends that message again, and all that follow it. But some of those may be under
// way already: whoever handled them would have them before the one that was given back. Each is
// given back as well, once; when one comes that had been, the service has gone back to it.
#pragma once

#include <map>
#include <set>
#include <string>

namespace inbox::pubsub {

class KeyOrder {
  public:
    // In the order in which they were sent.
    void given_back(const std::string& key, const std::string& message_id);

    // A message came. False: it has overtaken one of its key, and is to be given back.
    bool may_pass(const std::string& key, const std::string& message_id);

    void clear() { given_back_.clear(); }

  private:
    // Keys whose messages went elsewhere would stay for ever.
    static constexpr std::size_t max_keys = 10'000;
    std::map<std::string, std::set<std::string>> given_back_;
};

}  // namespace inbox::pubsub

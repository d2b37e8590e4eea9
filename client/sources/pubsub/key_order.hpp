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

    void clear();

  private:
    void note(const std::string& key, const std::string& message_id);
    void forget(std::map<std::string, std::set<std::string>>::iterator place);

    // Bound the memory for keys whose messages went to other consumers, or never come again.
    static constexpr std::size_t max_keys = 10'000, max_bytes = 16 * 1024 * 1024;
    std::map<std::string, std::set<std::string>> given_back_;
    std::size_t bytes_ = 0;  // of keys and ids
};

}  // namespace inbox::pubsub

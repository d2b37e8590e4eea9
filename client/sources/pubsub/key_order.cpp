#include "pubsub/key_order.hpp"

namespace inbox::pubsub {

void KeyOrder::given_back(const std::string& key, const std::string& message_id) {
    if (key.empty())
        return;
    if (given_back_.size() >= max_keys && !given_back_.contains(key))
        given_back_.erase(given_back_.begin());
    given_back_[key].insert(message_id);
}

bool KeyOrder::may_pass(const std::string& key, const std::string& message_id) {
    const auto found = given_back_.find(key);
    if (found == given_back_.end())
        return true;
    if (found->second.contains(message_id)) {
        given_back_.erase(found);
        return true;
    }
    found->second.insert(message_id);
    return false;
}

}  // namespace inbox::pubsub

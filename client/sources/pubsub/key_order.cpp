#include "pubsub/key_order.hpp"

namespace inbox::pubsub {

static constexpr std::size_t size_of_node = 64;  // about, beside its text

void KeyOrder::note(const std::string& key, const std::string& message_id) {
    const auto [place, is_new] = given_back_.try_emplace(key);
    if (is_new)
        bytes_ += key.size() + size_of_node;
    if (place->second.insert(message_id).second)
        bytes_ += message_id.size() + size_of_node;
    while (given_back_.size() > max_keys || bytes_ > max_bytes)
        forget(given_back_.begin());
}

void KeyOrder::forget(std::map<std::string, std::set<std::string>>::iterator place) {
    bytes_ -= place->first.size() + size_of_node;
    for (const std::string& message_id : place->second)
        bytes_ -= message_id.size() + size_of_node;
    given_back_.erase(place);
}

void KeyOrder::given_back(const std::string& key, const std::string& message_id) {
    if (!key.empty())
        note(key, message_id);
}

bool KeyOrder::may_pass(const std::string& key, const std::string& message_id) {
    const auto found = given_back_.find(key);
    if (found == given_back_.end())
        return true;
    if (found->second.contains(message_id)) {
        forget(found);
        return true;
    }
    note(key, message_id);
    return false;
}

void KeyOrder::clear() {
    given_back_.clear();
    bytes_ = 0;
}

}  // namespace inbox::pubsub

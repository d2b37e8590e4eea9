// Makes deliveries for tests, by key and number.
#pragma once

#include <string>
#include <vector>

#include "inbox/event.hpp"

namespace inbox {

inline Delivery delivery(const std::string& key, int number, std::size_t size = 10) {
    Delivery made;
    made.event.ordering_key = key;
    made.event.id = "00000000-0000-4000-8000-" + std::string(11, '0') + std::to_string(number % 10);
    made.message_id = key + std::to_string(number);
    made.size = size;
    return made;
}

inline std::vector<std::string> message_ids(const std::vector<Delivery>& deliveries) {
    std::vector<std::string> ids;
    for (const Delivery& one : deliveries)
        ids.push_back(one.message_id);
    return ids;
}

}  // namespace inbox

#include "leases.hpp"

namespace inbox {

void Leases::forget_all() {
    open_.clear();
    settlements_.clear();
}

void Leases::ack(std::span<const Delivery> deliveries) {
    for (const Delivery& delivery : deliveries)
        settle(delivery.handle, 1);
}

void Leases::nack(std::span<const Delivery> deliveries) {
    for (std::size_t i = 0; i < deliveries.size();) {
        const std::string& token = deliveries[i].handle;
        std::vector<std::string> ids;
        for (; i < deliveries.size() && deliveries[i].handle == token; i++)
            ids.push_back(deliveries[i].event.id);
        if (!open_.contains(token))
            continue;
        const std::size_t count = ids.size();
        settlements_.push_back({token, std::move(ids)});
        settle(token, count);
    }
}

void Leases::settle(const std::string& token, std::size_t events) {
    const auto lease = open_.find(token);
    if (lease == open_.end())
        return;
    if (lease->second > events) {
        lease->second -= events;
        return;
    }
    open_.erase(lease);
    settlements_.push_back({token, {}});
}

std::vector<std::string> Leases::tokens() const {
    std::vector<std::string> tokens;
    for (const auto& [token, events] : open_)
        tokens.push_back(token);
    return tokens;
}

}  // namespace inbox

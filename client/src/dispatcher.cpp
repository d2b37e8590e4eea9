#include "dispatcher.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace inbox {

bool Dispatcher::full() {
    if (messages_ >= max_messages_ || bytes_ >= max_bytes_)
        full_ = true;
    else if (messages_ < max_messages_ - max_messages_ / 5 && bytes_ < max_bytes_ - max_bytes_ / 5)
        full_ = false;
    return full_;
}

std::size_t Dispatcher::room(std::chrono::milliseconds wait) {
    std::unique_lock lock(mutex_);
    if (!finished_.wait_for(lock, wait, [this] { return stopped_ || !full(); }) || stopped_)
        return 0;
    return max_messages_ - messages_;
}

void Dispatcher::add(std::vector<Delivery> deliveries) {
    const std::lock_guard lock(mutex_);
    for (Delivery& delivery : deliveries) {
        messages_++;
        bytes_ += delivery.size;
        std::shared_ptr<Line> line;
        bool is_new = true;
        if (const std::string& key = delivery.event.ordering_key; key.empty()) {
            line = std::make_shared<Line>();
        } else {
            std::shared_ptr<Line>& known = keys_[key];
            is_new = known == nullptr;
            if (is_new)
                known = std::make_shared<Line>(Line{key, {}, {}});
            line = known;
        }
        line->waiting.push_back(std::move(delivery));
        if (is_new)
            ready_.push_back(std::move(line));
    }
    work_.notify_all();
}

std::vector<Item> Dispatcher::take(std::size_t max) {
    std::unique_lock lock(mutex_);
    work_.wait(lock, [this] { return stopped_ || (!paused_ && !ready_.empty()); });
    std::vector<Item> items;
    items.reserve(std::min(max, messages_));  // they are large to move
    while (!stopped_ && items.size() < max && !ready_.empty()) {
        const std::shared_ptr<Line> line = std::move(ready_.front());
        ready_.pop_front();
        while (items.size() < max && !line->waiting.empty()) {
            items.push_back({.delivery = std::move(line->waiting.front()), .line = line});
            line->waiting.pop_front();
        }
    }
    busy_ += !items.empty();
    return items;
}

std::vector<Delivery> Dispatcher::finish(std::vector<Item> items) {
    std::vector<Delivery> done;
    done.reserve(items.size());
    const std::lock_guard lock(mutex_);
    for (auto begin = items.begin(); begin != items.end();) {
        const std::shared_ptr<Line> line = begin->line;
        const auto end =
            std::find_if(begin, items.end(), [&](const Item& i) { return i.line != line; });
        std::vector<Delivery> left;
        std::chrono::milliseconds pause{0};
        for (auto item = begin; item != end; ++item) {
            if (is_done(item->result)) {
                messages_--;
                bytes_ -= item->delivery.size;
                done.push_back(std::move(item->delivery));
            } else {
                left.push_back(std::move(item->delivery));
                pause = std::max(pause, item->pause);
            }
        }
        if (!left.empty()) {
            line->waiting.insert(line->waiting.begin(), std::make_move_iterator(left.begin()),
                                 std::make_move_iterator(left.end()));
            line->held_until = Clock::now() + pause;
            held_.push_back(line);
        } else if (!line->waiting.empty()) {
            ready_.push_back(line);
        } else {
            keys_.erase(line->key);
        }
        begin = end;
    }
    busy_--;
    if (!ready_.empty())
        work_.notify_one();
    finished_.notify_all();
    return done;
}

std::vector<Delivery> Dispatcher::take_line(Line& line) {
    std::vector<Delivery> taken(std::make_move_iterator(line.waiting.begin()),
                                std::make_move_iterator(line.waiting.end()));
    for (const Delivery& delivery : taken) {
        messages_--;
        bytes_ -= delivery.size;
    }
    keys_.erase(line.key);
    return taken;
}

std::vector<Delivery> Dispatcher::take_held(Clock::time_point now) {
    const std::lock_guard lock(mutex_);
    std::vector<Delivery> due;
    std::erase_if(held_, [&](const std::shared_ptr<Line>& line) {
        if (line->held_until > now)
            return false;
        std::ranges::move(take_line(*line), std::back_inserter(due));
        return true;
    });
    return due;
}

std::vector<Delivery> Dispatcher::take_waiting(const std::function<bool(const Delivery&)>& which) {
    const std::lock_guard lock(mutex_);
    std::vector<Delivery> taken;
    const auto take_from = [&](Line& line) {
        std::erase_if(line.waiting, [&](Delivery& delivery) {
            if (!which(delivery))
                return false;
            messages_--;
            bytes_ -= delivery.size;
            taken.push_back(std::move(delivery));
            return true;
        });
    };
    for (const auto& [key, line] : keys_)
        take_from(*line);
    const auto is_empty = [&](const std::shared_ptr<Line>& line) {
        if (line->key.empty())
            take_from(*line);
        if (!line->waiting.empty())
            return false;
        keys_.erase(line->key);
        return true;
    };
    std::erase_if(ready_, is_empty);
    std::erase_if(held_, is_empty);
    finished_.notify_all();  // there may be room
    return taken;
}

bool Dispatcher::take_all(std::chrono::milliseconds wait, std::vector<Delivery>& all) {
    std::unique_lock lock(mutex_);
    paused_ = true;
    const bool quiet =
        finished_.wait_for(lock, wait, [this] { return stopped_ || busy_ == 0; }) && !stopped_;
    if (quiet) {
        for (const auto& lines : {held_, std::vector(ready_.begin(), ready_.end())})
            for (const std::shared_ptr<Line>& line : lines)
                std::ranges::move(take_line(*line), std::back_inserter(all));
        held_.clear();
        ready_.clear();
    }
    paused_ = false;
    work_.notify_all();
    return quiet;
}

void Dispatcher::stop() {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    work_.notify_all();
    finished_.notify_all();
}

std::size_t Dispatcher::messages() const {
    const std::lock_guard lock(mutex_);
    return messages_;
}

std::size_t Dispatcher::bytes() const {
    const std::lock_guard lock(mutex_);
    return bytes_;
}

}  // namespace inbox

#include "net/resp.hpp"

#include <algorithm>
#include <cstring>

#include "core/text.hpp"

namespace outbox {

static void append_head(std::string& out, char kind, std::int64_t number) {
    out += kind;
    append_integer(out, number);
    out += "\r\n";
}

void append_command(std::string& out, std::size_t arguments) {
    append_head(out, '*', static_cast<std::int64_t>(arguments));
}

void append_argument(std::string& out, std::string_view argument) {
    append_head(out, '$', static_cast<std::int64_t>(argument.size()));
    out.append(argument).append("\r\n");
}

void append_argument(std::string& out, std::int64_t argument) {
    std::string text;
    append_integer(text, argument);
    append_argument(out, text);
}

void RespReader::reset() noexcept {
    levels_.clear();
    line_.clear();
    begun_ = done_ = in_text_ = false;
    text_ = nullptr;
}

RespReader::State RespReader::read(std::string_view& input) {
    if (!begun_) {
        value_ = {};
        elements_ = kept_ = bytes_ = 0;
        done_ = false;
        begun_ = true;
    }
    const std::size_t size = input.size();
    const State state = read_on(input);
    bytes_ += size - input.size();
    return state;
}

RespReader::State RespReader::read_on(std::string_view& input) {
    while (!done_) {
        if (in_text_) {
            if (input.empty())
                return State::more;
            if (!read_text(input))
                return State::broken;
        } else {
            if (!read_line(input))
                return State::more;
            const bool valid = take_line();
            line_.clear();
            if (!valid)
                return State::broken;
        }
    }
    begun_ = false;
    return State::complete;
}

// True if the line is complete. Keeps its beginning, without its end.
bool RespReader::read_line(std::string_view& input) {
    const auto* end = static_cast<const char*>(std::memchr(input.data(), '\n', input.size()));
    const std::size_t size =
        end != nullptr ? static_cast<std::size_t>(end - input.data()) : input.size();
    // One byte more than a text may have: that of the kind.
    const std::size_t longest = std::min(limits_.text, max_line) + 1;
    const std::size_t room = longest - std::min(longest, line_.size());
    line_.append(input.substr(0, std::min(size, room)));
    input.remove_prefix(end != nullptr ? size + 1 : size);
    if (end == nullptr)
        return false;
    if (!line_.empty() && line_.back() == '\r')
        line_.pop_back();
    return true;
}

bool RespReader::read_text(std::string_view& input) {
    if (text_left_ > 0) {
        const std::size_t size = static_cast<std::size_t>(
            std::min<std::int64_t>(text_left_, static_cast<std::int64_t>(input.size())));
        if (text_ != nullptr) {
            const std::size_t kept =
                std::min({size, limits_.text - text_->text.size(), limits_.bytes - kept_});
            text_->text.append(input.substr(0, kept));
            text_->is_cut |= kept < size;
            kept_ += kept;
        }
        input.remove_prefix(size);
        text_left_ -= static_cast<std::int64_t>(size);
        return true;
    }
    static constexpr std::string_view line_end = "\r\n";
    if (input.front() != line_end[line_end.size() - text_end_left_])
        return false;
    input.remove_prefix(1);
    if (--text_end_left_ == 0) {
        in_text_ = false;
        end_value();
    }
    return true;
}

// Where the next value goes; nullptr if it is dropped.
RespValue* RespReader::place() {
    if (levels_.empty())
        return &value_;
    RespValue* array = levels_.back().array;
    const bool is_full =
        array == nullptr || elements_ >= limits_.elements ||
        (levels_.size() >= level_of_fields && array->elements.size() >= limits_.fields);
    if (is_full) {
        if (array != nullptr)
            array->is_cut = true;
        return nullptr;
    }
    elements_++;
    return &array->elements.emplace_back();
}

bool RespReader::take_line() {
    if (line_.empty())
        return false;
    const char kind = line_.front();
    const std::string_view rest = std::string_view(line_).substr(1);
    if (kind == '+' || kind == '-') {
        if (RespValue* value = place()) {
            value->kind = kind == '+' ? RespValue::Kind::status : RespValue::Kind::error;
            value->text = rest;
        }
        end_value();
        return true;
    }
    const std::optional<std::int64_t> number = parse_integer(rest);
    if (!number || (kind != ':' && kind != '$' && kind != '*'))
        return false;
    RespValue* value = place();
    if (kind == ':') {
        if (value != nullptr) {
            value->kind = RespValue::Kind::integer;
            value->integer = *number;
        }
        end_value();
        return true;
    }
    if (*number < 0) {
        end_value();
        return *number == -1;
    }
    if (kind == '*')
        return begin_array(value, *number);
    if (value != nullptr)
        value->kind = RespValue::Kind::text;
    text_ = value;
    text_left_ = *number;
    text_end_left_ = 2;
    in_text_ = true;
    return true;
}

bool RespReader::begin_array(RespValue* value, std::int64_t length) {
    if (value != nullptr)
        value->kind = RespValue::Kind::array;
    if (length == 0) {
        end_value();
        return true;
    }
    if (levels_.size() == max_levels)
        return false;
    levels_.push_back({value, length});
    return true;
}

void RespReader::end_value() {
    while (!levels_.empty() && --levels_.back().left == 0)
        levels_.pop_back();
    done_ = levels_.empty();
}

}  // namespace outbox

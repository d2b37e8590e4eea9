#include "core/json_check.hpp"

#include <bitset>

#include "core/text.hpp"

namespace outbox {

namespace {

class Scanner {
  public:
    explicit Scanner(std::string_view bytes)
        : at_(bytes.data()), end_(bytes.data() + bytes.size()) {}

    bool whole() {
        skip_blanks();
        do {
            if (!value())
                return false;
        } while (depth_ > 0);
        skip_blanks();
        return at_ == end_;
    }

  private:
    static constexpr std::size_t max_depth = 1000;

    void skip_blanks() {
        while (at_ != end_ && (*at_ == ' ' || *at_ == '\t' || *at_ == '\n' || *at_ == '\r'))
            at_++;
    }

    bool take(char c) {
        if (at_ == end_ || *at_ != c)
            return false;
        at_++;
        return true;
    }

    // Reads a value and all brackets that close after it. If more must follow, depth_ is not 0 and
    // the next value comes next.
    bool value() {
        if (take('{'))
            return open(true);
        if (take('['))
            return open(false);
        return scalar() && close();
    }

    bool open(bool is_object) {
        if (depth_ == max_depth)
            return false;
        objects_[depth_++] = is_object;
        skip_blanks();
        if (take(is_object ? '}' : ']')) {
            depth_--;
            return close();
        }
        return !is_object || name();
    }

    // Called after a value.
    bool close() {
        while (depth_ > 0) {
            const bool is_object = objects_[depth_ - 1];
            skip_blanks();
            if (take(',')) {
                skip_blanks();
                return !is_object || name();
            }
            if (!take(is_object ? '}' : ']'))
                return false;
            depth_--;
        }
        return true;
    }

    bool name() {
        if (!take('"') || !string())
            return false;
        skip_blanks();
        if (!take(':'))
            return false;
        skip_blanks();
        return true;
    }

    bool scalar() {
        if (take('"'))
            return string();
        if (at_ != end_ && (*at_ == '-' || is_digit()))
            return number();
        return literal("true") || literal("false") || literal("null");
    }

    bool literal(std::string_view text) {
        if (!std::string_view(at_, static_cast<std::size_t>(end_ - at_)).starts_with(text))
            return false;
        at_ += text.size();
        return true;
    }

    bool is_digit() const { return at_ != end_ && *at_ >= '0' && *at_ <= '9'; }

    bool digits() {
        if (!is_digit())
            return false;
        while (is_digit())
            at_++;
        return true;
    }

    bool number() {
        take('-');
        if (!take('0') && !digits())
            return false;
        if (take('.') && !digits())
            return false;
        if (take('e') || take('E')) {
            if (!take('+'))
                take('-');
            return digits();
        }
        return true;
    }

    // Called after the opening quote.
    bool string() {
        while (true) {
            while (at_ != end_ && is_plain(*at_))
                at_++;
            if (at_ == end_)
                return false;
            const auto c = static_cast<unsigned char>(*at_);
            if (c >= 0x80) {
                const std::size_t length = utf8_length({at_, static_cast<std::size_t>(end_ - at_)});
                if (length == 0)
                    return false;
                at_ += length;
                continue;
            }
            at_++;
            if (c == '"')
                return true;
            if (c < ' ' || !escape())
                return false;
        }
    }

    // A character of a string that needs no further check.
    static bool is_plain(char c) {
        return static_cast<signed char>(c) >= ' ' && c != '"' && c != '\\';
    }

    bool escape() {
        if (at_ == end_)
            return false;
        const char c = *at_++;
        if (c != 'u')
            return std::string_view("\"\\/bfnrt").find(c) != std::string_view::npos;
        for (int i = 0; i < 4; i++, at_++) {
            const bool is_hex =
                is_digit() || (at_ != end_ && ascii_lower(*at_) >= 'a' && ascii_lower(*at_) <= 'f');
            if (!is_hex)
                return false;
        }
        return true;
    }

    const char* at_;
    const char* end_;
    std::size_t depth_ = 0;
    std::bitset<max_depth> objects_;  // for each open value: true if it is an object
};

}  // namespace

bool is_json_value(std::string_view bytes) noexcept {
    return Scanner(bytes).whole();
}

}  // namespace outbox

// The protocol of Redis, RESP2: writes commands and reads answers.
//
// A peer may send any number of bytes, elements and levels. Only a limited part of an answer is
// kept: the beginning of a long text, and the first elements of a long array. The rest is read and
// dropped, so that entries of any size can be asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace outbox {

// Appends the head of a command with this number of arguments, its name included.
void append_command(std::string& out, std::size_t arguments);
void append_argument(std::string& out, std::string_view argument);
void append_argument(std::string& out, std::int64_t argument);

// Appends a whole command.
template <class... Arguments>
void append_command_of(std::string& out, const Arguments&... arguments) {
    append_command(out, sizeof...(arguments));
    (append_argument(out, arguments), ...);
}

struct RespValue {
    enum class Kind : std::uint8_t { nil, status, error, integer, text, array };

    Kind kind = Kind::nil;
    std::int64_t integer = 0;
    std::string text{};  // of a status, an error, a text: its beginning
    std::vector<RespValue> elements{};
    bool is_cut = false;  // a part of the text, or some elements, were dropped

    bool is_error() const noexcept { return kind == Kind::error; }
    bool is_array() const noexcept { return kind == Kind::array; }
    // nullptr if there is no such element.
    const RespValue* at(std::size_t index) const noexcept {
        return index < elements.size() ? &elements[index] : nullptr;
    }
};

class RespReader {
  public:
    struct Limits {
        std::size_t text = 512;         // bytes that are kept of each text
        std::size_t elements = 20'000;  // that are kept of an answer, all levels together
        std::size_t fields = 8;         // elements that are kept of each array on the third level
        std::size_t bytes = 16 * 1024 * 1024;  // that are kept of all texts of an answer
    };

    RespReader() : RespReader(Limits{}) {}
    explicit RespReader(Limits limits) : limits_(limits) {}

    enum class State { more, complete, broken };
    // Reads the next answer, and removes from `input` what it has read. `complete`: value() is the
    // answer, and the next call begins another one. `broken`: this is not Redis. May throw
    // std::bad_alloc.
    State read(std::string_view& input);
    RespValue& value() noexcept { return value_; }
    std::size_t bytes() const noexcept { return bytes_; }  // of the answer, as far as it has come
    // Forgets an answer that is not complete.
    void reset() noexcept;

  private:
    static constexpr std::size_t max_levels = 8;
    static constexpr std::size_t level_of_fields = 3;
    static constexpr std::size_t max_line = 64 * 1024;  // that is kept

    struct Level {
        RespValue* array;  // nullptr if its elements are dropped
        std::int64_t left;
    };

    State read_on(std::string_view& input);
    bool read_line(std::string_view& input);
    bool read_text(std::string_view& input);
    bool take_line();
    bool begin_array(RespValue* value, std::int64_t length);
    RespValue* place();
    void end_value();

    const Limits limits_;
    RespValue value_;
    std::vector<Level> levels_;
    std::size_t elements_ = 0;  // kept
    std::size_t kept_ = 0;      // bytes of texts
    std::size_t bytes_ = 0;
    bool begun_ = false;
    bool done_ = false;

    std::string line_;
    bool in_text_ = false;
    RespValue* text_ = nullptr;      // nullptr if the text is dropped
    std::int64_t text_left_ = 0;     // bytes of the text that have not come
    std::size_t text_end_left_ = 0;  // bytes of the line end behind it
};

}  // namespace outbox

#include "net/amqp/frames.hpp"

#include <algorithm>
#include <new>
#include <utility>

namespace outbox {

static std::uint64_t read_number(std::string_view bytes, std::size_t size) noexcept {
    std::uint64_t number = 0;
    for (std::size_t i = 0; i < size; i++)
        number = number << 8 | static_cast<unsigned char>(bytes[i]);
    return number;
}

static void append_number(std::string& out, std::uint64_t number, std::size_t size) {
    for (std::size_t i = size; i-- > 0;)
        out += static_cast<char>(number >> (8 * i));
}

// -------------------------------------------------------------------------------------------------
// Frames
// -------------------------------------------------------------------------------------------------

static constexpr std::size_t frame_head = 7;

Framing read_frame(std::string_view bytes, std::size_t max_size, Frame& frame) noexcept {
    if (bytes.size() < frame_head)
        return Framing::incomplete;
    frame.type = static_cast<std::uint8_t>(bytes[0]);
    frame.channel = static_cast<std::uint16_t>(read_number(bytes.substr(1), 2));
    const std::uint64_t size = read_number(bytes.substr(3), 4);
    if (size + frame_overhead > max_size)
        return Framing::malformed;
    if (bytes.size() < size + frame_overhead)
        return Framing::incomplete;
    if (static_cast<unsigned char>(bytes[frame_head + size]) != AMQP_FRAME_END)
        return Framing::malformed;
    frame.payload = bytes.substr(frame_head, size);
    return Framing::complete;
}

static void append_head(std::string& out, std::uint8_t type, std::uint16_t channel,
                        std::size_t size) {
    out += static_cast<char>(type);
    append_number(out, channel, 2);
    append_number(out, size, 4);
}

static void append_end(std::string& out) {
    out += static_cast<char>(AMQP_FRAME_END);
}

// Appends a frame whose payload is a number of `fixed` bytes and what encode(buffer) writes, in at most
// `room` bytes. Returns false, and appends nothing, if it does not fit.
template <class Encode>
static bool append_encoded(std::string& out, std::uint8_t type, std::uint16_t channel,
                           std::string_view fixed, std::size_t room, Encode encode) {
    const std::size_t begin = out.size();
    append_head(out, type, channel, 0);
    out += fixed;
    const std::size_t at = out.size();
    out.resize(at + room);
    const int size = encode(amqp_bytes_t{room, out.data() + at});
    if (size < 0) {
        out.resize(begin);
        return false;
    }
    out.resize(at + static_cast<std::size_t>(size));
    const std::size_t payload = out.size() - begin - frame_head;
    for (std::size_t i = 0; i < 4; i++)
        out[begin + 3 + i] = static_cast<char>(payload >> (8 * (3 - i)));
    append_end(out);
    return true;
}

void append_method(std::string& out, std::uint16_t channel, amqp_method_number_t number,
                   void* method) {
    // Enough for a user, a password and a few short strings.
    for (std::size_t room = 2048;; room *= 2) {
        std::string fixed;
        append_number(fixed, number, 4);
        if (append_encoded(out, AMQP_FRAME_METHOD, channel, fixed, room, [&](amqp_bytes_t buffer) {
                return amqp_encode_method(number, method, buffer);
            }))
            return;
        if (room > 1024 * 1024)
            throw std::bad_alloc();
    }
}

void append_heartbeat(std::string& out) {
    append_head(out, AMQP_FRAME_HEARTBEAT, 0, 0);
    append_end(out);
}

void append_channel_open(std::string& out, std::uint16_t channel) {
    amqp_channel_open_t open{.out_of_band = amqp_bytes("")};
    append_method(out, channel, AMQP_CHANNEL_OPEN_METHOD, &open);
}

void append_channel_close(std::string& out, std::uint16_t channel) {
    amqp_channel_close_t close{.reply_code = AMQP_REPLY_SUCCESS,
                               .reply_text = amqp_bytes(""),
                               .class_id = 0,
                               .method_id = 0};
    append_method(out, channel, AMQP_CHANNEL_CLOSE_METHOD, &close);
}

void append_channel_close_ok(std::string& out, std::uint16_t channel) {
    amqp_channel_close_ok_t answer{};
    append_method(out, channel, AMQP_CHANNEL_CLOSE_OK_METHOD, &answer);
}

bool append_content(std::string& out, std::uint16_t channel, std::size_t max_frame,
                    amqp_basic_properties_t& properties, std::string_view body) {
    std::string fixed;  // short enough to need no memory
    append_number(fixed, AMQP_BASIC_CLASS, 2);
    append_number(fixed, 0, 2);
    append_number(fixed, body.size(), 8);
    std::size_t wanted = 512;
    for (int i = 0; i < properties.headers.num_entries; i++)
        wanted += properties.headers.entries[i].key.len +
                  properties.headers.entries[i].value.value.bytes.len + 8;
    for (const amqp_bytes_t& text : {properties.content_type, properties.type})
        wanted += text.len;
    const std::size_t room = std::min(wanted, max_frame - frame_overhead - fixed.size());
    if (!append_encoded(out, AMQP_FRAME_HEADER, channel, fixed, room, [&](amqp_bytes_t buffer) {
            return amqp_encode_properties(AMQP_BASIC_CLASS, &properties, buffer);
        }))
        return false;
    while (!body.empty()) {
        const std::string_view part = body.substr(0, max_frame - frame_overhead);
        append_head(out, AMQP_FRAME_BODY, channel, part.size());
        out += part;
        append_end(out);
        body.remove_prefix(part.size());
    }
    return true;
}

// -------------------------------------------------------------------------------------------------
// Tables
// -------------------------------------------------------------------------------------------------

namespace {

// Tables of brokers have a level or two.
constexpr int deepest = 16;

class TableWalk {
  public:
    explicit TableWalk(std::string_view bytes) : rest_(bytes) {}

    bool table(int depth) noexcept { return fields(depth, true); }

  private:
    bool take(std::size_t size, std::string_view& taken) noexcept {
        if (rest_.size() < size)
            return false;
        taken = rest_.substr(0, size);
        rest_.remove_prefix(size);
        return true;
    }

    bool skip(std::size_t size) noexcept {
        std::string_view skipped;
        return take(size, skipped);
    }

    bool skip_sized(std::size_t size_bytes) noexcept {
        std::string_view size;
        return take(size_bytes, size) && skip(read_number(size, size_bytes));
    }

    bool fields(int depth, bool have_names) noexcept {
        std::string_view size, inside;
        if (depth > deepest || !take(4, size) || !take(read_number(size, 4), inside))
            return false;
        const std::string_view behind = std::exchange(rest_, inside);
        while (!rest_.empty())
            if ((have_names && !skip_sized(1)) || !value(depth))
                return false;
        rest_ = behind;
        return true;
    }

    bool value(int depth) noexcept {
        std::string_view kind;
        if (!take(1, kind))
            return false;
        switch (kind.front()) {
            case AMQP_FIELD_KIND_VOID:
                return true;
            case AMQP_FIELD_KIND_BOOLEAN:
            case AMQP_FIELD_KIND_I8:
            case AMQP_FIELD_KIND_U8:
                return skip(1);
            case AMQP_FIELD_KIND_I16:
            case AMQP_FIELD_KIND_U16:
                return skip(2);
            case AMQP_FIELD_KIND_I32:
            case AMQP_FIELD_KIND_U32:
            case AMQP_FIELD_KIND_F32:
                return skip(4);
            case AMQP_FIELD_KIND_DECIMAL:
                return skip(5);
            case AMQP_FIELD_KIND_I64:
            case AMQP_FIELD_KIND_U64:
            case AMQP_FIELD_KIND_F64:
            case AMQP_FIELD_KIND_TIMESTAMP:
                return skip(8);
            case AMQP_FIELD_KIND_UTF8:
            case AMQP_FIELD_KIND_BYTES:
                return skip_sized(4);
            case AMQP_FIELD_KIND_ARRAY:
                return fields(depth + 1, false);
            case AMQP_FIELD_KIND_TABLE:
                return fields(depth + 1, true);
            default:
                return false;
        }
    }

    std::string_view rest_;
};

}  // namespace

bool is_shallow(std::string_view bytes) noexcept {
    return TableWalk(bytes).table(1);
}

// -------------------------------------------------------------------------------------------------
// Decoding
// -------------------------------------------------------------------------------------------------

static constexpr std::size_t pool_page = 4096;
static constexpr std::size_t method_number_size = 4;
static constexpr std::size_t content_head_size = 12;  // class, weight, size of the body

AmqpDecoder::AmqpDecoder() {
    init_amqp_pool(&pool_, pool_page);
}

AmqpDecoder::~AmqpDecoder() {
    empty_amqp_pool(&pool_);
}

amqp_method_number_t AmqpDecoder::number_of(const Frame& frame) noexcept {
    if (frame.type != AMQP_FRAME_METHOD || frame.payload.size() < method_number_size)
        return 0;
    return static_cast<amqp_method_number_t>(read_number(frame.payload, method_number_size));
}

const void* AmqpDecoder::decode_method(const Frame& frame) {
    const amqp_method_number_t number = number_of(frame);
    const std::string_view arguments = frame.payload.substr(method_number_size);
    // The only method of a server with a table, behind two bytes.
    if (number == AMQP_CONNECTION_START_METHOD &&
        (arguments.size() < 2 || !is_shallow(arguments.substr(2))))
        return nullptr;
    recycle_amqp_pool(&pool_);
    void* decoded = nullptr;
    const int status = amqp_decode_method(number, &pool_, amqp_bytes(arguments), &decoded);
    if (status == AMQP_STATUS_NO_MEMORY)
        throw std::bad_alloc();
    return status == AMQP_STATUS_OK ? decoded : nullptr;
}

// The table of headers comes behind two short strings, if these are there.
static bool has_shallow_headers(std::string_view properties) noexcept {
    if (properties.size() < 2)
        return false;
    const std::uint64_t flags = read_number(properties, 2);
    properties.remove_prefix(2);
    if ((flags & 1) != 0)  // more flags: there is no such property
        return false;
    for (const std::uint64_t flag :
         {AMQP_BASIC_CONTENT_TYPE_FLAG, AMQP_BASIC_CONTENT_ENCODING_FLAG})
        if ((flags & flag) != 0) {
            if (properties.empty())
                return false;
            const std::size_t size = 1 + static_cast<unsigned char>(properties.front());
            if (properties.size() < size)
                return false;
            properties.remove_prefix(size);
        }
    return (flags & AMQP_BASIC_HEADERS_FLAG) == 0 || is_shallow(properties);
}

const amqp_basic_properties_t* AmqpDecoder::decode_properties(const Frame& frame,
                                                              std::uint64_t& body_size) {
    if (frame.type != AMQP_FRAME_HEADER || frame.payload.size() < content_head_size ||
        read_number(frame.payload, 2) != AMQP_BASIC_CLASS)
        return nullptr;
    body_size = read_number(frame.payload.substr(4), 8);
    const std::string_view properties = frame.payload.substr(content_head_size);
    if (!has_shallow_headers(properties))
        return nullptr;
    recycle_amqp_pool(&pool_);
    void* decoded = nullptr;
    const int status =
        amqp_decode_properties(AMQP_BASIC_CLASS, &pool_, amqp_bytes(properties), &decoded);
    if (status == AMQP_STATUS_NO_MEMORY)
        throw std::bad_alloc();
    return status == AMQP_STATUS_OK ? static_cast<const amqp_basic_properties_t*>(decoded)
                                    : nullptr;
}

}  // namespace outbox

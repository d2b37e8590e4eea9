#include "extension/log/utf8.hpp"

namespace outbox {

Bytes bytes_of(Datum value) {
    struct varlena* flat = PG_DETOAST_DATUM_PACKED(value);
    return {VARDATA_ANY(flat), VARSIZE_ANY_EXHDR(flat)};
}

Bytes utf8_of(Datum text) {
    const Bytes bytes = bytes_of(text);
    return utf8_of(bytes.data, static_cast<int>(bytes.size));
}

Bytes utf8_of(const char* data, int length) {
    char* converted = pg_server_to_any(const_cast<char*>(data), length, PG_UTF8);
    return converted == data ? Bytes{data, static_cast<size_t>(length)}
                             : Bytes{converted, strlen(converted)};
}

static Bytes without_foreign_bytes(const Bytes& text) {
    auto* clean = static_cast<char*>(palloc(text.size));
    for (size_t i = 0; i < text.size; i++)
        clean[i] = IS_HIGHBIT_SET(text.data[i]) ? '?' : text.data[i];
    return {clean, text.size};
}

// Returns false if the text has no form in UTF-8.
static bool convert(Bytes& text) {
    const int encoding = GetDatabaseEncoding();
    const int length = static_cast<int>(text.size);
    if (encoding == PG_UTF8)
        return true;
    if (encoding == PG_SQL_ASCII)
        return pg_verify_mbstr(PG_UTF8, text.data, length, true);
    const Oid conversion = FindDefaultConversionProc(encoding, PG_UTF8);
    if (!OidIsValid(conversion))
        return false;
    const int room = length * MAX_CONVERSION_GROWTH + 1;
    auto* converted = static_cast<unsigned char*>(palloc(room));
    auto* source = reinterpret_cast<unsigned char*>(const_cast<char*>(text.data));
    if (pg_do_encoding_conversion_buf(conversion, encoding, PG_UTF8, source, length, converted,
                                      room, true) != length)
        return false;
    const auto* result = reinterpret_cast<const char*>(converted);
    text = {result, strlen(result)};
    return true;
}

Bytes readable_utf8(const char* data, int length, bool& is_whole) {
    Bytes text = {data, static_cast<size_t>(length)};
    if (convert(text))
        return text;
    is_whole = false;
    return without_foreign_bytes(text);
}

Bytes readable_utf8(Datum text, bool& is_whole) {
    const Bytes bytes = bytes_of(text);
    return readable_utf8(bytes.data, static_cast<int>(bytes.size), is_whole);
}

Bytes readable_utf8(const char* text) {
    bool is_whole;
    return readable_utf8(text, static_cast<int>(strlen(text)), is_whole);
}

}  // namespace outbox

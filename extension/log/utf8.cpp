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

}  // namespace outbox

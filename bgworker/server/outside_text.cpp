#include "server/outside_text.hpp"

namespace outbox {

static constexpr int max_text_bytes = 1000;

Datum text_from_outside(std::string_view bytes) {
    int size = static_cast<int>(bytes.size());
    char* text = pnstrdup(bytes.data(), size);
    size = static_cast<int>(strlen(text));
    if (GetDatabaseEncoding() != PG_UTF8 || !pg_verify_mbstr(PG_UTF8, text, size, true))
        for (char* c = text; *c != '\0'; c++)
            if (IS_HIGHBIT_SET(*c))
                *c = '?';
    size = pg_mbcliplen(text, size, max_text_bytes);
    return PointerGetDatum(cstring_to_text_with_len(text, size));
}

}  // namespace outbox

#include "extension/base/outside_text.hpp"

#include "core/text.hpp"
#include "extension/base/boundary.hpp"

namespace outbox {

char* line_from_outside(std::string_view utf8) {
    auto* line = static_cast<char*>(palloc0(max_printable + 1));
    run_core([&] { printable(utf8).copy(line, max_printable); });
    if (GetDatabaseEncoding() == PG_UTF8)
        return line;
    // A character that this encoding lacks would raise an error.
    for (char* c = line; *c != '\0'; c++)
        if (IS_HIGHBIT_SET(*c))
            *c = '?';
    return line;
}

NameForLog::NameForLog(const char* name) {
    if (GetDatabaseEncoding() == PG_UTF8) {
        run_core([&] { printable(name, NAMEDATALEN - 1).copy(text, NAMEDATALEN - 1); });
        return;
    }
    strlcpy(text, name, NAMEDATALEN);
    for (char* c = text; *c != '\0'; c++)
        if (!IS_HIGHBIT_SET(*c) && (*c < ' ' || *c == 0x7f))
            *c = ' ';
}

Datum text_from_outside(std::string_view utf8) {
    return CStringGetTextDatum(line_from_outside(utf8));
}

}  // namespace outbox

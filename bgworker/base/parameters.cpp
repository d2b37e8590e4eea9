#include "bgworker/base/parameters.hpp"

namespace outbox {

Datum name_datum(const char* text) {
    auto* name = static_cast<Name>(palloc(sizeof(NameData)));
    namestrcpy(name, text);
    return NameGetDatum(name);
}

Datum server_text(std::string_view utf8) {
    char* converted =
        pg_any_to_server(const_cast<char*>(utf8.data()), static_cast<int>(utf8.size()), PG_UTF8);
    return PointerGetDatum(
        converted == utf8.data()
            ? cstring_to_text_with_len(utf8.data(), static_cast<int>(utf8.size()))
            : cstring_to_text(converted));
}

}  // namespace outbox

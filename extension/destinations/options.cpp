#include "extension/destinations/options.hpp"

namespace outbox {

OptionTexts option_texts(List* options) {
    OptionTexts texts{};
    texts.names = static_cast<const char**>(palloc(sizeof(char*) * (list_length(options) + 1)));
    texts.values = static_cast<const char**>(palloc(sizeof(char*) * (list_length(options) + 1)));
    ListCell* cell;
    foreach (cell, options) {
        DefElem* option = lfirst_node(DefElem, cell);
        texts.names[texts.count] = option->defname;
        texts.values[texts.count++] = defGetString(option);
    }
    return texts;
}

std::vector<Option> to_options(const OptionTexts& texts) {
    std::vector<Option> options;
    for (int i = 0; i < texts.count; i++)
        options.push_back({texts.names[i], texts.values[i]});
    return options;
}

bool may_read_files(Oid role) {
    return superuser_arg(role) || has_privs_of_role(role, ROLE_PG_READ_SERVER_FILES);
}

}  // namespace outbox

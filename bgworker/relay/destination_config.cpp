#include "bgworker/relay/destination_config.hpp"

#include "extension/base/boundary.hpp"
#include "extension/base/settings.hpp"
#include "extension/destinations/options.hpp"
#include "sinks/registry.hpp"

namespace outbox {

Result<Destination> DestinationConfig::destination() const {
    Result<Destination> destination =
        parse_destination(name, server_options, mapping_options, defaults);
    if (!destination)
        return destination;
    // Options are checked again for the present owner: it may not be the role that set them, or may
    // have lost the privilege.
    if (const std::string option = file_option(destination.value());
        !may_read_files && !option.empty())
        return may_not_name_file(option);
    destination.value().source = source;
    if (password_required)
        destination.value().needs_credentials_because = owner_is_no_superuser;
    return destination;
}

ExpressionTexts DestinationConfig::expressions() const noexcept {
    ExpressionTexts texts;
    for (const Option& option : server_options)
        if (option.name == filter_option.name)
            texts.filter = option.value.c_str();
        else if (option.name == payload_option.name)
            texts.payload = option.value.c_str();
    return texts;
}

// Returns the mapping of the server's owner, or else the public one, or else nothing.
static List* mapping_of(Oid owner, Oid server) {
    for (const Oid user : {owner, static_cast<Oid>(ACL_ID_PUBLIC)})
        if (SearchSysCacheExists2(USERMAPPINGUSERSERVER, ObjectIdGetDatum(user),
                                  ObjectIdGetDatum(server)))
            return GetUserMapping(user, server)->options;
    return NIL;
}

// Returns where this server itself listens, for a postgresql:/// URL: a socket directory before
// TCP.
static const char* local_host() {
    char* directories = pstrdup(Unix_socket_directories);
    const char* first = strtok(directories, ", ");
    return first != nullptr ? first : "localhost";
}

bool load_config(Oid server, DestinationConfig& config) {
    List* server_options = NIL;
    List* mapping_options = NIL;
    const char* name = "default";
    Oid owner = BOOTSTRAP_SUPERUSERID;
    if (OidIsValid(server)) {
        const ForeignServer* row = GetForeignServerExtended(server, FSV_MISSING_OK);
        if (row == nullptr)
            return false;
        name = row->servername;
        owner = row->owner;
        server_options = row->options;
        mapping_options = mapping_of(owner, server);
    } else {
        if (settings::default_destination[0] == '\0')
            return false;
        server_options = list_make1(makeDefElem(
            pstrdup("url"),
            reinterpret_cast<Node*>(makeString(pstrdup(settings::default_destination))), -1));
    }
    const OptionTexts server_texts = option_texts(server_options);
    const OptionTexts mapping_texts = option_texts(mapping_options);
    const char* database = get_database_name(MyDatabaseId);
    const char* user = GetUserNameFromId(owner, false);
    const char* host = local_host();
    const bool password_required = !superuser_arg(owner);
    const bool reads_files = may_read_files(owner);

    run_core([&] {
        config.name = name;
        config.source = database;
        config.server_options = to_options(server_texts);
        config.mapping_options = to_options(mapping_texts);
        config.defaults = {.connect_timeout = milliseconds(settings::connect_timeout),
                           .request_timeout = milliseconds(settings::request_timeout),
                           .receipts = settings::receipts,
                           .user = user,
                           .local_host = host,
                           .local_port = std::to_string(PostPortNumber),
                           .allowed_hosts = settings::allowed_hosts};
        config.password_required = password_required;
        config.may_read_files = reads_files;
        config.owner = owner;
        config.limits = settings::pipeline_limits();
        config.tracing = settings::tracing();
    });
    return true;
}

}  // namespace outbox

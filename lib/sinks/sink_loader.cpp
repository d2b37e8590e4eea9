#include "sinks/sink_loader.hpp"

#include <dlfcn.h>

#include "sinks/clean_sink.hpp"
#include "sinks/module_entry.hpp"
#include "sinks/null/null_sink.hpp"

namespace outbox {

static const char* module_of(SinkKind kind) {
    switch (kind) {
        case SinkKind::http:
            return "pg_outbox_http.so";
        case SinkKind::postgresql:
            return "pg_outbox_postgresql.so";
        case SinkKind::pubsub:
            return "pg_outbox_pubsub.so";
        case SinkKind::sqs:
        case SinkKind::sns:
            return "pg_outbox_aws.so";
        case SinkKind::null:
        case SinkKind::pull:
            break;
    }
    return "";
}

static Error not_loaded(const std::string& path) {
    const char* why = dlerror();
    return {ErrorKind::unavailable, "could not load " + path, why != nullptr ? why : "",
            "Install the module of this sink beside pg_outbox.so."};
}

static Error of_another_build(const std::string& path) {
    return {ErrorKind::unavailable, path + " is not of the same build as the library in memory",
            "The library has been replaced since the server was started.", "Restart the server."};
}

// The modules of sinks lie beside the shared object this code is in.
static std::string path_of(SinkKind kind) {
    Dl_info self{};
    dladdr(reinterpret_cast<void*>(&path_of), &self);
    std::string path = self.dli_fname != nullptr ? self.dli_fname : "";
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/') + 1);
    return path + module_of(kind);
}

// Calls the function of a module that makes something.
template <class Thing, class Context>
static Result<std::unique_ptr<Thing>> create(const char* entry_name, const Context& context) {
    const std::string path = path_of(context.destination.kind);
    void* module =
        dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // stays for the life of the process
    if (module == nullptr)
        return not_loaded(path);
    auto entry = reinterpret_cast<Thing* (*)(const Context&)>(dlsym(module, entry_name));
    if (entry == nullptr)
        return of_another_build(path);
    Thing* thing = entry(context);
    if (thing == nullptr)
        return Error{ErrorKind::internal, "out of memory"};
    return clean(std::unique_ptr<Thing>(thing), context.destination);
}

Result<std::unique_ptr<Sink>> create_sink(const SinkContext& context) {
    if (context.destination.kind == SinkKind::null)
        return create_null_sink();
    if (context.destination.kind == SinkKind::pull)  // its relay is about to end
        return Error{ErrorKind::unavailable, "events of this destination are fetched"};
    return create<Sink>(sink_module_entry, context);
}

Result<std::unique_ptr<Check>> create_check(const CheckContext& context) {
    if (context.destination.kind == SinkKind::null || context.destination.kind == SinkKind::pull)
        return std::unique_ptr<Check>();
    return create<Check>(check_module_entry, context);
}

}  // namespace outbox

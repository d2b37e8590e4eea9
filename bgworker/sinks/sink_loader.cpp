#include "sinks/sink_loader.hpp"

#include <dlfcn.h>

#include "sinks/null_sink.hpp"

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

Result<std::unique_ptr<Sink>> create_sink(const SinkContext& context) {
    if (context.destination.kind == SinkKind::null)
        return create_null_sink();
    if (context.destination.kind == SinkKind::pull)  // its relay is about to end
        return Error{ErrorKind::unavailable, "events of this destination are fetched"};

    Dl_info self{};
    dladdr(reinterpret_cast<void*>(&create_sink), &self);
    std::string path = self.dli_fname != nullptr ? self.dli_fname : "";
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/') + 1);
    path += module_of(context.destination.kind);

    void* module =
        dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // stays for the life of the process
    if (module == nullptr)
        return not_loaded(path);
    auto entry = reinterpret_cast<SinkModuleEntry>(dlsym(module, sink_module_entry));
    if (entry == nullptr)
        return not_loaded(path);
    Sink* sink = entry(context);
    if (sink == nullptr)
        return Error{ErrorKind::internal, "out of memory"};
    return std::unique_ptr<Sink>(sink);
}

}  // namespace outbox

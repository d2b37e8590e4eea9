#include "sinks/sink_loader.hpp"

#include <dlfcn.h>

#include "sinks/clean_sink.hpp"
#include "sinks/module_entry.hpp"
#include "sinks/screened_sink.hpp"

namespace outbox {

static Error not_loaded(const std::string& path) {
    const char* why = dlerror();
    return {ErrorKind::unavailable, "could not load " + path, why != nullptr ? why : "",
            "Install the module of this sink there."};
}

static Error of_another_build(const std::string& path) {
    return {ErrorKind::unavailable, path + " is not of the same build as the library in memory",
            "The library has been replaced since the process was started.",
            "Restart the server or outbox-relay."};
}

static std::string& directory() {
    static std::string directory;
    return directory;
}

void load_modules_from(std::string modules) {
    directory() = std::move(modules);
}

static std::string path_of(std::string_view module) {
    if (!directory().empty())
        return directory() + std::string(module);
    Dl_info self{};
    dladdr(reinterpret_cast<void*>(&path_of), &self);
    std::string path = self.dli_fname != nullptr ? self.dli_fname : "";
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/') + 1);
    return path.append(module);
}

// Loads a module and calls the function that it exports.
template <class Thing, class Context>
static Result<std::unique_ptr<Thing>> create(const char* entry_name, const Context& context) {
    const std::string path = path_of(context.destination.sink->module);
    void* module =
        // Never closed: stays for the life of the process.
        dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
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

static Result<std::unique_ptr<Sink>> create_plain_sink(const SinkContext& context) {
    const SinkDeclaration& sink = *context.destination.sink;
    if (sink.is_fetched())  // its relay is about to end
        return Error{ErrorKind::unavailable,
                     "events of this destination are fetched with outbox.fetch()"};
    if (sink.create != nullptr)
        return sink.create();
    return create<Sink>(sink_module_entry, context);
}

Result<std::unique_ptr<Sink>> create_sink(const SinkContext& context) {
    Result<std::unique_ptr<Sink>> sink = create_plain_sink(context);
    if (!sink)
        return sink;
    return screened(std::move(sink.value()));
}

Result<std::unique_ptr<Check>> create_check(const CheckContext& context) {
    if (context.destination.sink->module.empty())
        return std::unique_ptr<Check>();
    return create<Check>(check_module_entry, context);
}

}  // namespace outbox

// outbox-relay: delivers events of pg_outbox from outside of the server. See docs/outbox-relay.md.
#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "relay/configure/check.hpp"
#include "relay/configure/command_line.hpp"
#include "relay/configure/connection.hpp"
#include "relay/configure/load.hpp"
#include "relay/configure/settings.hpp"
#include "relay/observe/http_server.hpp"
#include "relay/serve/serve.hpp"
#include "sinks/sink_loader.hpp"

namespace outbox::relay {

static constexpr int failure = 1;

static void complain(const Error& error) {
    std::fprintf(stderr, "outbox-relay: %s\n", error.message.c_str());
    if (!error.detail.empty())
        std::fprintf(stderr, "DETAIL:  %s\n", error.detail.c_str());
    if (!error.hint.empty())
        std::fprintf(stderr, "HINT:  %s\n", error.hint.c_str());
}

// A signal that arrives before the loop runs waits for it. Threads inherit the mask.
static void block_signals() {
    sigset_t signals;
    sigemptyset(&signals);
    for (int signal : {SIGTERM, SIGINT})
        sigaddset(&signals, signal);
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

// The modules are where they were installed, seen from the program.
static void find_modules() {
    std::error_code error;
    const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
    load_modules_from((program.parent_path() / "../lib/outbox-relay/").string());
}

static Result<std::unique_ptr<HttpServer>> start_http(const RelayConfig& config,
                                                      const Figures& figures, Log& log) {
    if (config.listen.empty())
        return std::unique_ptr<HttpServer>();
    const Result<ListenAddress> address = parse_listen_address(config.listen);
    if (!address)
        return address.error();
    auto server = HttpServer::start(
        {address.value().host, address.value().port, config.name, OUTBOX_VERSION}, figures, log);
    if (server)
        log.info({}, "listening on port " + std::to_string(server.value()->port()));
    return server;
}

static int deliver(const RelayConfig& config) {
    Log log(config.log_format, config.log_level);
    Figures figures;
    block_signals();
    connection_environment();  // before there are threads
    log.info({}, "outbox-relay " OUTBOX_VERSION " has started as \"" + config.name + '"');
    const Result<std::unique_ptr<HttpServer>> http = start_http(config, figures, log);
    if (!http) {
        log.error({}, http.error());
        return failure;
    }
    return serve(config, log, figures);
}

static int run(int argc, char** argv) {
    const std::variant<Arguments, int> arguments = parse_command_line(argc, argv);
    if (const int* code = std::get_if<int>(&arguments))
        return *code;
    Errors errors;
    const RelayConfig config = load_config(
        std::get<Arguments>(arguments), [](const char* name) { return std::getenv(name); }, errors);
    for (const Error& error : errors)
        complain(error);
    if (!errors.empty())
        return wrong_usage;
    find_modules();
    if (config.check)
        return check_everything(config) ? 0 : failure;
    return deliver(config);
}

}  // namespace outbox::relay

int main(int argc, char** argv) {
    signal(SIGPIPE, SIG_IGN);
    try {
        return outbox::relay::run(argc, argv);
    } catch (const std::exception& error) {
        outbox::relay::complain({outbox::ErrorKind::internal, error.what()});
        return outbox::relay::failure;
    }
}

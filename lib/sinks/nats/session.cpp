#include "sinks/nats/session.hpp"

namespace outbox {

Result<NatsConfig> nats_config(const NatsOptions& options) {
    if (const auto why = wrong_client_certificate(options.transport.certificate,
                                                  options.transport.private_key, options.tls))
        return Error{ErrorKind::invalid_value, *why};
    Result<NatsLogin> login = nats_login(options.login);
    if (!login)
        return Error{ErrorKind::invalid_value, login.error().message + " (user mapping)"};
    return NatsConfig{.hosts = options.hosts,
                      .tls = options.tls,
                      .tls_first = options.tls_first,
                      .client_name = "pg_outbox",
                      .login = std::move(login.value()),
                      .transport = options.transport};
}

}  // namespace outbox

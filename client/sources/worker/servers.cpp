#include "worker/servers.hpp"

#include "core/url.hpp"

namespace inbox::worker {

std::optional<std::vector<std::pair<std::string, std::string>>> parse_servers(
    const std::string& list, std::string_view default_port) {
    const outbox::Result<outbox::Url> parsed =
        outbox::Url::parse("servers://" + list, outbox::Url::Hosts::list);
    if (!parsed)
        return std::nullopt;
    const outbox::Url& url = parsed.value();
    if (url.user || !url.path.empty() || !url.query.empty())
        return std::nullopt;
    std::vector<std::pair<std::string, std::string>> servers{{url.host, url.port}};
    servers.insert(servers.end(), url.further_hosts.begin(), url.further_hosts.end());
    for (auto& [host, port] : servers) {
        if (!outbox::is_host_name(host))
            return std::nullopt;
        if (port.empty())
            port = default_port;
    }
    return servers;
}

}  // namespace inbox::worker

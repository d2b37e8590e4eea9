#include "core/allowed_hosts.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>

#include "core/text.hpp"

namespace outbox {

static constexpr std::array<std::uint8_t, 12> ipv4_prefix{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

static Address from_ipv4(const void* four_bytes) noexcept {
    Address address;
    std::copy(ipv4_prefix.begin(), ipv4_prefix.end(), address.bytes.begin());
    std::memcpy(address.bytes.data() + ipv4_prefix.size(), four_bytes, 4);
    return address;
}

std::optional<Address> Address::parse(std::string_view text) noexcept {
    char buffer[INET6_ADDRSTRLEN] = "";
    text = text.substr(0, text.find('%'));
    if (text.size() >= sizeof buffer)
        return std::nullopt;
    std::copy(text.begin(), text.end(), buffer);
    Address address;
    in_addr ipv4{};
    if (inet_pton(AF_INET6, buffer, address.bytes.data()) == 1)
        return address;
    if (inet_pton(AF_INET, buffer, &ipv4) == 1)
        return from_ipv4(&ipv4);
    return std::nullopt;
}

std::optional<Address> Address::of(const sockaddr& address) noexcept {
    if (address.sa_family == AF_INET)
        return from_ipv4(&reinterpret_cast<const sockaddr_in&>(address).sin_addr);
    if (address.sa_family != AF_INET6)
        return std::nullopt;
    Address result;
    std::memcpy(result.bytes.data(), &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr,
                result.bytes.size());
    return result;
}

bool Address::is_ipv4() const noexcept {
    return std::equal(ipv4_prefix.begin(), ipv4_prefix.end(), bytes.begin());
}

std::string Address::text() const {
    char buffer[INET6_ADDRSTRLEN] = "";
    if (is_ipv4())
        inet_ntop(AF_INET, bytes.data() + ipv4_prefix.size(), buffer, sizeof buffer);
    else
        inet_ntop(AF_INET6, bytes.data(), buffer, sizeof buffer);
    return buffer;
}

// ---------------------------------------------------------------------------------------------
// Networks
// ---------------------------------------------------------------------------------------------

static bool bit(const Address& address, int number) noexcept {
    return address.bytes[static_cast<std::size_t>(number / 8)] >> (7 - number % 8) & 1;
}

// Like the type cidr, refuses an address with bits set behind the prefix: it is more often a
// mistake.
std::optional<Network> Network::parse(std::string_view text) noexcept {
    const std::size_t slash = text.find('/');
    const std::string_view first = text.substr(0, slash);
    const std::optional<Address> address = Address::parse(first);
    if (!address || first.find('%') != std::string_view::npos)
        return std::nullopt;
    Network network{*address, 128};
    if (slash == std::string_view::npos)
        return network;
    const int width = first.find(':') == std::string_view::npos ? 32 : 128;
    const auto length = parse_integer(text.substr(slash + 1));
    if (!length || *length < 0 || *length > width)
        return std::nullopt;
    network.bits = 128 - width + static_cast<int>(*length);
    for (int i = network.bits; i < 128; i++)
        if (bit(network.first, i))
            return std::nullopt;
    return network;
}

// "::/0" covers IPv6 only, although IPv4 addresses are kept in IPv6 form.
bool Network::contains(const Address& address) const noexcept {
    if (address.is_ipv4() != first.is_ipv4())
        return false;
    for (int i = 0; i < bits; i++)
        if (bit(address, i) != bit(first, i))
            return false;
    return true;
}

bool is_reserved(const Address& address) noexcept {
    static const std::array reserved{
        *Network::parse("0.0.0.0/8"),
        *Network::parse("127.0.0.0/8"),
        *Network::parse("169.254.0.0/16"),
        *Network::parse("::"),
        *Network::parse("::1"),
        *Network::parse("fe80::/10"),
        // Metadata and host services of clouds that are not link-local: Alibaba, Azure, Oracle,
        // Amazon, Google.
        *Network::parse("100.100.100.200"),
        *Network::parse("168.63.129.16"),
        *Network::parse("192.0.0.192"),
        *Network::parse("fd00:ec2::254"),
        *Network::parse("fd20:ce::254"),
    };
    // These networks carry an IPv4 address in the last four bytes: IPv4-compatible, NAT64.
    static const std::array embedding{*Network::parse("::/96"), *Network::parse("64:ff9b::/96")};

    auto contains = [](const Address& one) {
        return [&one](const Network& network) { return network.contains(one); };
    };
    if (std::any_of(reserved.begin(), reserved.end(), contains(address)))
        return true;
    return std::any_of(embedding.begin(), embedding.end(), contains(address)) &&
           is_reserved(from_ipv4(address.bytes.data() + ipv4_prefix.size()));
}

// ---------------------------------------------------------------------------------------------
// The list
// ---------------------------------------------------------------------------------------------

static std::string_view without_last_dot(std::string_view host) noexcept {
    return host.ends_with('.') ? host.substr(0, host.size() - 1) : host;
}

// True for a label that a resolver may read as (a part of) an IPv4 address.
static bool is_number(std::string_view label) noexcept {
    const bool hex = label.starts_with("0x") || label.starts_with("0X");
    return label.find_first_not_of(hex ? "0123456789abcdefABCDEFxX" : "0123456789") ==
           std::string_view::npos;
}

static bool is_label(std::string_view label) noexcept {
    return !label.empty() && std::all_of(label.begin(), label.end(), [](char c) {
        return (ascii_lower(c) >= 'a' && ascii_lower(c) <= 'z') || (c >= '0' && c <= '9') ||
               c == '-' || c == '_';
    });
}

static bool is_dns_name(std::string_view name) noexcept {
    while (true) {
        const std::size_t dot = name.find('.');
        const std::string_view label = name.substr(0, dot);
        if (!is_label(label))
            return false;
        if (dot == std::string_view::npos)
            return !is_number(label);
        name.remove_prefix(dot + 1);
    }
}

static Error malformed(std::string_view entry) {
    return {ErrorKind::invalid_value,
            "\"" + std::string(entry) + "\" is not a host name, address or network", "",
            "Write a list such as \"example.com, *.example.org, 192.0.2.1, 10.0.0.0/8, fd00::/8\": "
            "without ports, and nothing set behind the prefix of a network. The entry \"default\" "
            "stands for what an empty list allows."};
}

Result<AllowedHosts> AllowedHosts::parse(std::string_view list) {
    AllowedHosts hosts;
    if (trim(list).empty())
        return hosts;
    while (true) {
        const std::size_t comma = list.find(',');
        const std::string_view entry = trim(list.substr(0, comma));
        const bool below = entry.starts_with("*.");
        const std::string_view name = without_last_dot(below ? entry.substr(2) : entry);
        if (equal_ignoring_case(entry, "default"))
            hosts.has_default_ = true;
        else if (const std::optional<Network> network = Network::parse(entry))
            hosts.networks_.push_back(*network);
        else if (is_dns_name(name))
            hosts.names_.push_back((below ? "." : "") + std::string(name));
        else
            return malformed(entry);
        if (comma == std::string_view::npos)
            return hosts;
        list.remove_prefix(comma + 1);
    }
}

bool AllowedHosts::allows(std::string_view host) const noexcept {
    host = without_last_dot(host);
    return std::any_of(names_.begin(), names_.end(), [host](const std::string& name) {
        if (!name.starts_with('.'))
            return equal_ignoring_case(host, name);
        return host.size() > name.size() &&
               equal_ignoring_case(host.substr(host.size() - name.size()), name);
    });
}

bool AllowedHosts::allows(std::string_view host, const Address& address) const noexcept {
    return allows(host) ||
           std::any_of(networks_.begin(), networks_.end(),
                       [&](const Network& network) { return network.contains(address); });
}

std::string AllowedHosts::refusal(const Address& address, std::string_view host) const {
    const std::string_view name = without_last_dot(host);
    const std::string entry = is_dns_name(name) ? std::string(name) : address.text();
    return "address " + address.text() + " of host \"" + std::string(host) + "\" is not allowed; " +
           (empty() ? "set outbox.allowed_hosts to 'default, " + entry + "'"
                    : "add '" + entry + "' to outbox.allowed_hosts");
}

}  // namespace outbox

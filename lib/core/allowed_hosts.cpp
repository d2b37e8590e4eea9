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

// -------------------------------------------------------------------------------------------------
// Networks
// -------------------------------------------------------------------------------------------------

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

namespace {

// A network whose addresses carry an IPv4 address.
struct Embedding {
    Network network;
    std::array<std::size_t, 4> bytes;  // of it
    bool is_sure = true;               // if not, zeros there are rather a part of the prefix

    bool is_reserved_in(const Address& address) const noexcept {
        if (!network.contains(address))
            return false;
        std::array<std::uint8_t, 4> inside{};
        std::transform(bytes.begin(), bytes.end(), inside.begin(),
                       [&](std::size_t at) { return address.bytes[at]; });
        return (is_sure || inside[0] != 0) && is_reserved(from_ipv4(inside.data()));
    }
};

}  // namespace

bool is_reserved(const Address& address) noexcept {
    static const std::array reserved{
        *Network::parse("0.0.0.0/8"),
        *Network::parse("127.0.0.0/8"),
        *Network::parse("169.254.0.0/16"),
        *Network::parse("::"),
        *Network::parse("::1"),
        *Network::parse("fe80::/10"),
        // Metadata and host services of clouds that are not link-local: Alibaba, Azure, Oracle,
        // Amazon, Google. Amazon has more than one in its network.
        *Network::parse("100.100.100.200"),
        *Network::parse("168.63.129.16"),
        *Network::parse("192.0.0.192"),
        *Network::parse("fd00:ec2::/32"),
        *Network::parse("fd20:ce::254"),
    };
    // IPv4-compatible addresses, and those of NAT64 (RFC 6052). In its local network (RFC 8215) the
    // operator chooses the length of the prefix, and with it the place: 96, 64, 56 or 48 bits.
    static constexpr std::array<std::size_t, 4> last{12, 13, 14, 15};
    static const Network local_nat64 = *Network::parse("64:ff9b:1::/48");
    static const std::array embeddings{
        Embedding{*Network::parse("::/96"), last},
        Embedding{*Network::parse("64:ff9b::/96"), last},
        Embedding{local_nat64, last},
        Embedding{local_nat64, {9, 10, 11, 12}, false},
        Embedding{local_nat64, {7, 9, 10, 11}, false},
        Embedding{local_nat64, {6, 7, 9, 10}, false},
    };
    return std::any_of(reserved.begin(), reserved.end(),
                       [&](const Network& network) { return network.contains(address); }) ||
           std::any_of(embeddings.begin(), embeddings.end(), [&](const Embedding& embedding) {
               return embedding.is_reserved_in(address);
           });
}

// -------------------------------------------------------------------------------------------------
// The list
// -------------------------------------------------------------------------------------------------

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

Result<HostList> HostList::parse(std::string_view list) {
    HostList hosts;
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

bool HostList::allows(std::string_view host) const noexcept {
    host = without_last_dot(host);
    return std::any_of(names_.begin(), names_.end(), [host](const std::string& name) {
        if (!name.starts_with('.'))
            return equal_ignoring_case(host, name);
        return host.size() > name.size() &&
               equal_ignoring_case(host.substr(host.size() - name.size()), name);
    });
}

bool HostList::allows(std::string_view host, const Address& address) const noexcept {
    return allows(host) ||
           std::any_of(networks_.begin(), networks_.end(),
                       [&](const Network& network) { return network.contains(address); });
}

// -------------------------------------------------------------------------------------------------
// The list and its limit
// -------------------------------------------------------------------------------------------------

Result<AllowedHosts> AllowedHosts::parse(std::string_view list) {
    Result<HostList> parsed = HostList::parse(list);
    if (!parsed)
        return parsed.error();
    return AllowedHosts(std::move(parsed.value()));
}

void AllowedHosts::limit_to(HostList limit, std::string place) {
    limit_ = std::move(limit);
    place_of_limit_ = std::move(place);
}

bool AllowedHosts::allows_unreserved(std::string_view host, const Address& address) const noexcept {
    return list_.allows_unreserved(host, address) && within_limit(host, address);
}

bool AllowedHosts::allows_reserved(std::string_view host, const Address& address) const noexcept {
    return (list_.has_default() || list_.allows(host, address)) && within_limit(host, address);
}

bool AllowedHosts::allows_sockets() const noexcept {
    static constexpr std::string_view name = "localhost";
    return (list_.has_default() || list_.allows(name)) && (!limit_ || limit_->allows(name));
}

std::string AllowedHosts::advice(bool of_limit, std::string_view entry) const {
    const std::string quoted = "'" + std::string(entry) + "'";
    const bool none = of_limit ? limit_->empty() : list_.empty();
    const std::string setting =
        of_limit ? "allowed_hosts in " + place_of_limit_ : "outbox.allowed_hosts";
    return " is not allowed; " +
           (none ? "set " + setting + " to 'default, " + std::string(entry) + "'"
                 : "add " + quoted + " to " + setting);
}

std::string AllowedHosts::refusal(const Address& address, std::string_view host) const {
    const std::string_view name = without_last_dot(host);
    return "address " + address.text() + " of host \"" + std::string(host) + '"' +
           advice(!within_limit(host, address), is_dns_name(name) ? name : address.text());
}

std::string AllowedHosts::refusal_of_socket(std::string_view path) const {
    return "Unix socket \"" + std::string(path) + '"' +
           advice(limit_ && !limit_->allows("localhost"), "localhost");
}

}  // namespace outbox

#include "cloud/aws/sigv4.hpp"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <new>

#include "cloud/aws/form_field.hpp"
#include "core/percent.hpp"
#include "core/text.hpp"
#include "core/url.hpp"
#include "net/sha256.hpp"

namespace outbox {

namespace {

constexpr std::string_view algorithm = "AWS4-HMAC-SHA256";
constexpr std::string_view terminator = "aws4_request";

struct CanonicalHeader {
    std::string name;  // in lower case
    std::string value;
};

// Removes blanks at both ends, and replaces each run of blanks inside by one.
std::string folded(std::string_view value) {
    std::string out;
    for (char c : trim(value))
        if (c != ' ' || out.back() != ' ')
            out += c;
    return out;
}

// Sorts headers by name, and joins the values of repeated names in their order.
std::vector<CanonicalHeader> canonical_headers(const std::vector<HeaderField>& fields) {
    std::vector<CanonicalHeader> headers;
    for (const HeaderField& field : fields) {
        std::string name(field.name);
        std::transform(name.begin(), name.end(), name.begin(), ascii_lower);
        headers.push_back({std::move(name), folded(field.value)});
    }
    std::stable_sort(headers.begin(), headers.end(),
                     [](const auto& a, const auto& b) { return a.name < b.name; });
    std::vector<CanonicalHeader> merged;
    for (CanonicalHeader& header : headers) {
        if (!merged.empty() && merged.back().name == header.name)
            merged.back().value += ',' + header.value;
        else
            merged.push_back(std::move(header));
    }
    return merged;
}

std::string signed_headers(const std::vector<CanonicalHeader>& headers) {
    std::string names;
    for (const CanonicalHeader& header : headers) {
        if (!names.empty())
            names += ';';
        names += header.name;
    }
    return names;
}

// Removes empty and dot segments (RFC 3986, section 5.2.4), and percent-encodes the rest.
std::string canonical_path(std::string_view path) {
    std::vector<std::string_view> segments;
    const bool is_directory = path.ends_with('/') || path.ends_with("/.") || path.ends_with("/..");
    while (!path.empty()) {
        const std::string_view segment = path.substr(0, path.find('/'));
        path.remove_prefix(std::min(path.size(), segment.size() + 1));
        if (segment == ".." && !segments.empty())
            segments.pop_back();
        else if (!segment.empty() && segment != "." && segment != "..")
            segments.push_back(segment);
    }
    std::string out;
    for (std::string_view segment : segments) {
        out += '/';
        append_percent_encoded(out, segment);
    }
    if (is_directory || out.empty())
        out += '/';
    return out;
}

// Decodes and encodes the query again, so that there is one way to write it, and sorts it.
std::string canonical_query(std::string_view query) {
    const auto encoded = [](std::string_view text) {
        std::string out;
        append_percent_encoded(out, percent_decoded(text).value_or(std::string(text)));
        return out;
    };
    std::vector<std::pair<std::string, std::string>> parameters;
    while (!query.empty()) {
        const std::string_view pair = query.substr(0, query.find('&'));
        query.remove_prefix(std::min(query.size(), pair.size() + 1));
        const std::string_view name = pair.substr(0, pair.find('='));
        parameters.emplace_back(encoded(name),
                                encoded(pair.substr(std::min(pair.size(), name.size() + 1))));
    }
    std::sort(parameters.begin(), parameters.end());
    std::string out;
    for (const auto& [name, value] : parameters) {
        if (!out.empty())
            out += '&';
        out += name + '=' + value;
    }
    return out;
}

std::string canonical_request(const SignedRequest& request,
                              const std::vector<CanonicalHeader>& headers) {
    std::string out(request.method);
    out += '\n' + canonical_path(request.path) + '\n' + canonical_query(request.query) + '\n';
    for (const CanonicalHeader& header : headers)
        out += header.name + ':' + header.value + '\n';
    out += '\n' + signed_headers(headers) + '\n' + sha256_hex(request.body);
    return out;
}

}  // namespace

Sigv4::Sigv4(std::string region, std::string service)
    : region_(std::move(region)), service_(std::move(service)) {}

static std::array<unsigned char, 32> hmac(std::string_view key, std::string_view text) {
    std::array<unsigned char, 32> digest;
    if (HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
             reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data(),
             nullptr) == nullptr)
        throw std::bad_alloc();
    return digest;
}

static std::array<unsigned char, 32> hmac(const std::array<unsigned char, 32>& key,
                                          std::string_view text) {
    return hmac({reinterpret_cast<const char*>(key.data()), key.size()}, text);
}

const Sigv4::Digest& Sigv4::signing_key(const std::string& secret, std::string_view day) {
    if (secret != secret_ || day != day_) {
        signing_key_ = hmac(hmac(hmac(hmac("AWS4" + secret, day), region_), service_), terminator);
        secret_ = secret;
        day_ = day;
    }
    return signing_key_;
}

std::string Sigv4::scope(std::string_view day) const {
    std::string scope(day);
    scope += '/' + region_ + '/' + service_ + '/';
    scope += terminator;
    return scope;
}

std::string Sigv4::signature(const std::string& canonical, const AwsKeys& keys,
                             std::string_view time) {
    const std::string_view day = time.substr(0, 8);
    std::string to_sign(algorithm);
    to_sign += '\n';
    to_sign += time;
    to_sign += '\n' + scope(day) + '\n' + sha256_hex(canonical);
    std::string hex;
    append_hex(hex, hmac(signing_key(keys.secret_access_key, day), to_sign));
    return hex;
}

std::string Sigv4::authorization(const SignedRequest& request, const AwsKeys& keys,
                                 std::string_view time) {
    const std::vector<CanonicalHeader> headers = canonical_headers(request.headers);
    std::string value(algorithm);
    value += " Credential=" + keys.access_key_id + '/' + scope(time.substr(0, 8)) +
             ", SignedHeaders=" + signed_headers(headers) +
             ", Signature=" + signature(canonical_request(request, headers), keys, time);
    return value;
}

std::string Sigv4::presigned_query(SignedRequest request, const AwsKeys& keys,
                                   std::string_view time, std::int64_t lifetime) {
    const std::vector<CanonicalHeader> headers = canonical_headers(request.headers);
    std::string query(request.query);
    append_form_field(query, "X-Amz-Algorithm", algorithm);
    append_form_field(query, "X-Amz-Credential",
                      keys.access_key_id + '/' + scope(time.substr(0, 8)));
    append_form_field(query, "X-Amz-Date", time);
    append_form_field(query, "X-Amz-Expires", std::to_string(lifetime));
    if (!keys.session_token.empty())
        append_form_field(query, "X-Amz-Security-Token", keys.session_token);
    append_form_field(query, "X-Amz-SignedHeaders", signed_headers(headers));
    request.query = query;
    append_form_field(query, "X-Amz-Signature",
                      signature(canonical_request(request, headers), keys, time));
    return query;
}

std::string basic_timestamp(Micros unix_time) {
    std::string text;
    append_timestamp(text, unix_time);
    std::erase_if(text, [](char c) { return c == '-' || c == ':'; });
    return text.substr(0, text.find('.')) + 'Z';
}

std::string canonical_request(const SignedRequest& request) {
    return canonical_request(request, canonical_headers(request.headers));
}

}  // namespace outbox

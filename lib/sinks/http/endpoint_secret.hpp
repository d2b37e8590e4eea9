// The secrets of endpoints, made from the master secrets of the destination:
//
//   "whsec_" + base64(HMAC-SHA256(bytes of the master secret, name of the secret))
//
// So no secret is kept per endpoint. outbox.endpoint_secret() computes the same in SQL. A new name
// is a new secret; with two names, separated by a comma, both secrets sign.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace outbox {

// Returns the text form, or an empty string if the master secret has another form. May throw
// std::bad_alloc.
std::string endpoint_secret(std::string_view master_secret, std::string_view name);

// Returns a secret for each master secret that is not empty and each name in the list.
std::vector<std::string> endpoint_secrets(std::span<const std::string> master_secrets,
                                          std::string_view names);

}  // namespace outbox

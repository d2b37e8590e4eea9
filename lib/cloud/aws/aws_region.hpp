// Addresses and partitions of AWS regions.
#pragma once

#include <string>
#include <string_view>

namespace outbox {

inline bool is_in_china(std::string_view region) {
    return region.starts_with("cn-");
}

// The partition of a region, as in ARNs.
inline std::string_view partition_of(std::string_view region) {
    if (is_in_china(region))
        return "aws-cn";
    return region.starts_with("us-gov-") ? "aws-us-gov" : "aws";
}

inline std::string service_url(std::string_view service, std::string_view region) {
    std::string url = "https://";
    url += service;
    url += '.';
    url += region;
    url += is_in_china(region) ? ".amazonaws.com.cn" : ".amazonaws.com";
    return url;
}

}  // namespace outbox

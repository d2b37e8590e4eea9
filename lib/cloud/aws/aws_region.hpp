// Addresses and partitions of AWS regions.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

namespace outbox {

// A part of AWS with accounts and names of its own.
struct AwsPartition {
    std::string_view regions;  // how names of its regions begin
    std::string_view name;     // as in ARNs
    std::string_view domain;
};

// The partitions of botocore's partitions.json. The last one has all other regions.
inline constexpr std::array aws_partitions{
    AwsPartition{"cn-", "aws-cn", "amazonaws.com.cn"},
    AwsPartition{"us-gov-", "aws-us-gov", "amazonaws.com"},
    AwsPartition{"eusc-", "aws-eusc", "amazonaws.eu"},
    AwsPartition{"us-iso-", "aws-iso", "c2s.ic.gov"},
    AwsPartition{"us-isob-", "aws-iso-b", "sc2s.sgov.gov"},
    AwsPartition{"eu-isoe-", "aws-iso-e", "cloud.adc-e.uk"},
    AwsPartition{"us-isof-", "aws-iso-f", "csp.hci.ic.gov"},
    AwsPartition{"", "aws", "amazonaws.com"},
};

inline const AwsPartition& partition_of(std::string_view region) {
    return *std::find_if(
        aws_partitions.begin(), aws_partitions.end(),
        [&](const AwsPartition& known) { return region.starts_with(known.regions); });
}

// Returns "eu-west-1.amazonaws.com", below which the services of a region are.
inline std::string regional_domain(std::string_view region) {
    std::string domain(region);
    domain += '.';
    domain += partition_of(region).domain;
    return domain;
}

inline std::string service_url(std::string_view service, std::string_view region) {
    std::string url = "https://";
    url += service;
    url += '.';
    url += regional_domain(region);
    return url;
}

}  // namespace outbox

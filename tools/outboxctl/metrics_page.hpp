// Figures of several databases as one page of OpenMetrics text.
#pragma once

#include <string>
#include <vector>

namespace outboxctl {

// Joins pages: a family that several of them have appears once, with the samples of all. Each page is
// OpenMetrics text with TYPE and HELP before the samples of each family, and labels that tell the
// samples of different pages apart.
std::string join_metrics(const std::vector<std::string>& pages);

}  // namespace outboxctl

// The launcher looks after the cluster: one keeper per database that has an extension of ours.
#pragma once

namespace outbox {

// From _PG_init, when preloading.
void register_launcher();

}  // namespace outbox

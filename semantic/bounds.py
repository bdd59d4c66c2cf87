"""Limits of derivatives and search (design section 13), with units and consequences.

They are applied where data enters and again by the database. `checks.py` holds them to each
other: a provider is given up before its lease ends.
"""

from __future__ import annotations

from typing import Final

from turns import bounds as turns_bounds

KIB: Final = 1024

# What one request to a service holds; a refused batch is split once, then its items fail.
BATCH_ITEMS: Final = 32
# Services take at most so many; others far fewer.
BATCH_ITEMS_MAX: Final = 2_048
# What is looked up rather than computed: 20,000 texts a second.
STATIC_BATCH_ITEMS: Final = 256
# What is computed here, so that the longest texts are done in time on a busy machine too.
COMPUTED_BATCH_ITEMS: Final = 16
# Connect, write, read and pool together. Past it the jobs of the batch fail.
PROVIDER_TIMEOUT_SECONDS: Final = 15
# An embedder's own clock stops first: what it has by then still counts.
EMBEDDER_TIMEOUT_SECONDS: Final = PROVIDER_TIMEOUT_SECONDS - 0.5
# Past it another worker may reclaim the job.
LEASE_SECONDS: Final = 30
# One that ends later than this was given by a clock that was ahead and has been put right: it
# counts as over. No nearer, as a statement may see a lease given just after its own time.
LEASE_AHEAD_SECONDS: Final = 2 * LEASE_SECONDS
# Claims of one job, lost leases included. Past them it ends `semantic_attempts_exhausted`.
ATTEMPTS: Final = 5
# A provider failure ends a job. A new job for the message may follow after this pause,
# so many times.
COOL_DOWN_SECONDS: Final = 300
ROUNDS_AFTER_FAILURE: Final = 3
# Where messages were given up after that and this keeps a new manifest from taking over, they
# begin with their first round again after this pause, and so on.
ANEW_SECONDS: Final = 3_600
# A new manifest takes over while what was said last is still on its way to it, for so long at
# most: what a worker took along when it died comes back no sooner.
SWAP_LAG_SECONDS: Final = LEASE_SECONDS
# It does not where it gave up more of the messages that have a vector in the one that answers
# than this many and one in so many, or has none at all: then it is not about single texts.
SWAP_LOST_MAX: Final = 10
SWAP_LOST_ONE_IN: Final = 100
# Of a text longer than this, only the beginning is embedded.
EMBEDDED_TEXT_MAX_BYTES: Final = 24 * KIB
# A service's answer: this many bytes for each number that it was asked for.
ANSWER_BYTES_PER_NUMBER: Final = 24
# HNSW on `vector` holds no more.
DIMENSIONS_MAX: Final = 2_000
MODEL_NAME_MAX_CHARS: Final = turns_bounds.MODEL_NAME_MAX_CHARS
PREFIX_MAX_CHARS: Final = 64

# A person's vectors are compared one by one up to this many, and found by index above.
EXACT_MAX_VECTORS: Final = 10_000
# Refused with `search_query_too_long`.
QUERY_MAX_BYTES: Final = 512
HITS_MAX: Final = 10
EXCERPT_MAX_BYTES: Final = 800
# How many of each list, by words and by vectors, are ranked together.
CANDIDATES: Final = 50
# What was being said when a turn or a job asked has ended since, and must not take up a place
# among these: so many more are looked at, as many as can be said at once.
LATE_CANDIDATES: Final = 2 * turns_bounds.ACTIVE_TURNS_PER_OWNER
# Added to each rank, so that the first places do not outweigh agreement (reciprocal rank).
RECIPROCAL_RANK_OFFSET: Final = 60

# What one look for missing, expired and left-over rows may write at a time.
RECONCILE_ROWS: Final = 2_000

# A person who searches waits no longer for the query's vector: then words have to do.
QUERY_TIMEOUT_SECONDS: Final = 4.0
# Searches of one person that a process does at the same time. Refused with `rate_limited`.
SEARCHES_PER_PERSON: Final = 4
# With a quoted phrase, so many of the best that have its words are looked through for it.
PHRASE_CANDIDATES: Final = 500
# How much HNSW looks around for a list of candidates, and where it gives up: then each of the
# person's vectors is compared.
INDEX_SEARCH_WIDTH: Final = 120
INDEX_SCAN_TUPLES: Final = 40_000

# Cosine of texts that have nothing to do with each other: not a hit. Measured with the local
# models: 0.18 and 0.3 at most, and from 0.27 and 0.35 on where they have.
SIMILARITY_MIN: Final = 0.2
# Below it a hit that has not all the words is weak evidence.
SIMILARITY_WEAK: Final = 0.35
# Evidence that is older is stale.
FRESH_DAYS: Final = 365
# A signed reference to an answer, as it may come back.
REF_MAX_CHARS: Final = 4_000

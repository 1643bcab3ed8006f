# As blackhole-both, for what the store sends to A.
. "$proof/faults/blackhole-both.bash"
FAULT_TITLE="replies lost for 3 ttl" FAULT_ORDER=71
LOST=replies

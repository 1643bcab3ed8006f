. "$proof/faults/restart-lost.bash"
FAULT_TITLE='data lost; restart-grace' FAULT_ORDER=46 FAULT_QUICK=''
# Redlock has it without being asked; in the lease table only a promotion counts.
fault_applies() { case $TOOL in dlock-redis | dlock-advisory) ;; *) false ;; esac; }
fault_setup() { B_LATE=1 DLOCK_PARAMS="?restart-grace=${TTL}s"; }

FAULT_TITLE='nothing happens' FAULT_ORDER=10
fault_inject() { :; }

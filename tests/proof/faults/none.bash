FAULT_TITLE='none' FAULT_ORDER=10
fault_inject() { :; }

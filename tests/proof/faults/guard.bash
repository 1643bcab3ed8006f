FAULT_TITLE='guard killed (-9)' FAULT_ORDER=24
fault_applies() { have tool_guard; }
fault_inject() { kill -KILL $(tool_guard); }

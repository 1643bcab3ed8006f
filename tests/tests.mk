# tests.mk - what the tests are made of, and how they are run; included by the Makefile.

# ---------------------------------------------------------------- sources ---

FAKE_SRC := $(wildcard tests/support/fake/*.c)
UNIT_SRC := $(wildcard tests/unit/*/test_*.c)
# The unit tests that need a store's sources.
REDIS_UNIT     := redis/% redlock/% lib/test_tls.c
POSTGRES_UNIT  := postgres/%
MYSQL_UNIT     := mysql/%
ZOOKEEPER_UNIT := zookeeper/%
UNIT_SRC := $(filter-out $(foreach x,$(PARTS),$(if $(filter no,$(WITH_$x)),$($x_UNIT:%=tests/unit/%))),$(UNIT_SRC))
# Those in the folder of a store that may be a module are linked with that module's sources.
UNIT_STORES := POSTGRES MYSQL ZOOKEEPER
HELP_SRC := $(wildcard tests/support/helpers/*.c)
# Programs that use the library, and the examples.
USE_SRC  := $(wildcard tests/programs/*.c lib/examples/*.c)
LOAD_SRC := $(wildcard tests/support/preload/*.c)
BAD_SRC  := $(wildcard tests/support/modules/*.c)
# The fuzz targets, which need the sources of all stores; and the words of their languages.
FUZZ_SRC := $(filter-out %/replay.c,$(sort $(wildcard tests/fuzz/*.c)))
FUZZ_SRC := $(if $(filter no,$(WITH_REDIS) $(foreach x,$(UNIT_STORES),$(WITH_$x))),,$(FUZZ_SRC))
# All that is formatted.
TEST_C   := $(shell find tests -name '*.[ch]')

# The program that is tested is made of the objects of dlock itself, save those whose source asks
# for DLOCK_TEST.
HOOKED   := $(shell grep -lw DLOCK_TEST $(LIB_SRC) $(CLI_SRC))
TEST_OBJ := $(filter-out $(HOOKED:%.c=$O/%.o),$(LIB_OBJ) $(CLI_OBJ)) $(patsubst %.c,$O/test/%.o,$(HOOKED) $(FAKE_SRC))
UNIT_BIN := $(UNIT_SRC:tests/unit/%.c=$(BUILD)/unit/%)
# Those that run under ThreadSanitizer too: their source has a line "tags: thread".
THREAD_BIN := $(patsubst tests/unit/%.c,$(BUILD)/unit/%,$(shell grep -l '^ \* tags:.*\<thread\>' $(UNIT_SRC)))
FUZZ_BIN := $(FUZZ_SRC:tests/fuzz/%.c=$(BUILD)/fuzzers/%)
HELP_BIN := $(HELP_SRC:tests/support/helpers/%.c=$(BUILD)/test/%)
USE_BIN  := $(patsubst %.c,$(BUILD)/programs/%,$(notdir $(USE_SRC)))
LOAD_BIN := $(LOAD_SRC:tests/support/preload/%.c=$(BUILD)/test/%.so)
BAD_BIN  := $(BAD_SRC:tests/support/modules/%.c=$(BUILD)/test/%.so)

# ---------------------------------------------------------------- targets ---

check: ## install what is missing, build, run all tests
	@tests/deps check
	@$(SUBMAKE) check-build
	@BUILD=$(BUILD) SAN=$(SAN) CC='$(CC)' MAKE='$(MAKE)' tests/run

units: $(UNIT_BIN) $(BUILD)/unit/built

check-unit: ## only the unit tests (nothing is installed)
	@$(SUBMAKE) units
	@BUILD=$(BUILD) SAN=$(SAN) CC='$(CC)' MAKE='$(MAKE)' tests/run --unit

# Nothing is installed: the packages of MariaDB's server conflict with MySQL's.
check-mysql: ## the contract suite on your server: URI=mysql://USER:PASSWORD@HOST/DATABASE
	@[ -n $(call quoted,$(URI)) ] || { echo 'usage: make check-mysql URI=mysql://USER:PASSWORD@HOST/DATABASE' >&2; exit 64; }
	@$(SUBMAKE) $(BUILD)/dlock $(BUILD)/test/dlock $(HELP_BIN)
	@MY_URI=$(call quoted,$(URI)) BUILD=$(BUILD) SAN=$(SAN) CC='$(CC)' MAKE='$(MAKE)' \
	    tests/run tests/contract/stores/mysql.bash

check-asan: ## the whole suite under AddressSanitizer and UBSan
	@$(MAKE) BUILD=$(BUILD)/asan SAN=address,undefined check

check-tsan: ## what uses threads, under ThreadSanitizer
	@tests/deps check
	@$(SUBMAKE) BUILD=$(BUILD)/tsan SAN=thread check-build-thread
	@BUILD=$(BUILD)/tsan SAN=thread CC='$(CC)' MAKE='$(MAKE)' DLOCK_QUICK=1 tests/run --tags thread

coverage: ## which lines and branches the whole suite reaches: build/coverage/summary.txt, html/
	@tests/deps coverage
	@BUILD=$(BUILD) MAKE='$(MAKE)' JOBS=$(JOBS) tests/coverage/run

SECONDS ?= 10
fuzz: ## fuzz each parser for SECONDS=10, by clang's libFuzzer under ASan and UBSan
	@MAKE='$(MAKE)' JOBS=$(JOBS) tests/fuzz/run $(SECONDS)

fuzzers: $(FUZZ_BIN) $(BUILD)/seeds

soak: ## thousands of acquisitions, minutes of faults, packages, another Debian whole (hours)
	@tests/deps check
	@$(SUBMAKE) check-build
	@BUILD=$(BUILD) SAN=$(SAN) CC='$(CC)' MAKE='$(MAKE)' RELEASE=$(RELEASE) tests/soak/run

check-platforms: ## build and test for 32-bit, musl, arm64 and s390x, as far as this machine can
	@BUILD=$(BUILD) tests/platforms $(PLATFORMS)

model: ## search the models of lease, Redlock and queue, whole, and their planted defects
	@BUILD=$(BUILD) CC='$(CC)' tests/model/run

proof: ## can a command outlive its lock? dlock and others, by faults (8 minutes; QUICK=1: 2; SEED=N)
	@tests/deps $(if $(QUICK),check,proof)
	@$(SUBMAKE) all $(HELP_BIN)
	@DLOCK=$(abspath $(BUILD))/dlock HELPERS=$(abspath $(BUILD))/test tests/proof/run \
	    $(if $(QUICK),--quick) $(if $(SEED),--seed $(SEED)) $(if $(CELLS),--jobs $(CELLS)) \
	    --out $(BUILD)/proof

RELEASE ?= trixie
SCOPE   ?= suite
check-debian: ## on another Debian, in a chroot (root): RELEASE=trixie SCOPE=suite|user|readme
	@tests/release $(RELEASE) $(SCOPE)

check-deb: ## the tarball and the packages on Debian 12 and 13, in chroots (root): RELEASES=trixie
	@tests/deb $(RELEASES)

check-image: ## the image, and dlock run from it by runc (root)
	@BUILD=$(BUILD) tests/image

# What the tests tagged thread need.
check-build-thread: $(BUILD)/test/dlock $(THREAD_BIN) $(BUILD)/unit/built $(HELP_BIN) $(LOAD_BIN) $(USE_BIN)

# What the contract of a store needs. The preload shims know only the system calls of 64-bit
# machines.
check-build-contract: all units $(BUILD)/test/dlock $(HELP_BIN)

check-build: $(BUILD)/dlock $(BUILD)/test/dlock units fuzzers $(HELP_BIN) $(LOAD_BIN) $(BAD_BIN) $(USE_BIN) all

bench: all $(HELP_BIN) $(BUILD)/programs/handles ## what a lock costs
	@DLOCK=$(BUILD)/dlock tests/bench
bench-report: all $(HELP_BIN) $(BUILD)/programs/handles ## measure anew what man/figures.md shows, and draw its plots
	@tests/bench-report

.PHONY: coverage fuzz fuzzers check-build-contract check check-unit check-mysql units check-platforms check-asan check-tsan soak check-debian check-deb check-image check-build check-build-thread bench bench-report model proof

# ------------------------------------------------------------------ rules ---

$O/test/%.o: %.c $(BUILD)/flags
	$(call say,CC,$< (test))
	@mkdir -p $(@D)
	$(Q)$(CC_ALL) $(PROGRAM) -DDLOCK_TEST -Itests/support/fake $(PART) $(ID) $(DEP) $(USER_FLAGS) -c -o $@ $<

# The same program with the scripted fake store and the test hooks. It loads the same modules.
$(BUILD)/test/dlock: $(TEST_OBJ) $(BUILD)/sources | $(if $(MODULES),$(MODULES) $(BUILD)/test/dlock-modules)
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(LINK) -pie -o $@ $(filter %.o,$^) $(LDFLAGS) $(LIBS)

$(BUILD)/test/dlock-modules:
	@mkdir -p $(@D)
	$(Q)ln -sfn ../dlock-modules $@

# For tests/run: those of a store that is left out are not there.
$(BUILD)/unit/built: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' $(UNIT_SRC:tests/unit/%=%) > $@

# Archives, so that a unit test links only what it uses. libdlock.a hides what most of them test.
$(BUILD)/cli.a: $(filter-out %/main.o,$(CLI_OBJ))
$(BUILD)/lib.a: $(LIB_OBJ)
$(BUILD)/cli.a $(BUILD)/lib.a: $(BUILD)/sources
	$(call say,AR,$@)
	$(Q)rm -f $@ && $(AR) qcs $@ $(filter %.o,$^)

$(BUILD)/unit/%: tests/unit/%.c tests/unit/unit.h $(BUILD)/cli.a $(BUILD)/lib.a $(BUILD)/flags
	$(call say,UNIT,$@)
	@mkdir -p $(@D)
	$(Q)$(CC_ALL) -fPIE -Itests/unit $(UNIT_CFLAGS) $(DEP) $(USER_FLAGS) -o $@ $< -pie $(HARDEN_LD) $(LDFLAGS) \
	    $(BUILD)/cli.a $(UNIT_A) $(BUILD)/lib.a $(LIBS) $(UNIT_LIBS)

# The tests of a module's parts: linked with them, not loading it.
define unit_store
UNIT_$(1) := $$(filter $$(BUILD)/unit/$(call lower,$(1))/%,$$(UNIT_BIN))
$$(UNIT_$(1)): private UNIT_CFLAGS = $$($(1)_CFLAGS)
ifeq ($$(WITH_$(1)),module)
$$(UNIT_$(1)): private UNIT_A = $$(BUILD)/unit/$(call lower,$(1)).a
$$(UNIT_$(1)): private UNIT_LIBS = $$($(1)_LIBS)
$$(UNIT_$(1)): $$(BUILD)/unit/$(call lower,$(1)).a
endif
$$(BUILD)/unit/$(call lower,$(1)).a: $$(patsubst %.c,$$O/%.o,$$($(1)_SRC) $$($(1)_ENGINE))
endef
$(foreach x,$(UNIT_STORES),$(eval $(call unit_store,$x)))

$(BUILD)/unit/%.a: $(BUILD)/sources
	$(call say,AR,$@)
	@mkdir -p $(@D)
	$(Q)rm -f $@ && $(AR) qcs $@ $(filter %.o,$^)

# Linked with the stores' sources, as their unit tests are. Without libFuzzer a target replays files.
FUZZ_MAIN   = $(if $(findstring fuzzer,$(SAN)),-fsanitize=fuzzer,-include tests/fuzz/replay.c)
FUZZ_STORES = $(foreach x,$(UNIT_STORES),$(BUILD)/unit/$(call lower,$x).a)
$(BUILD)/fuzzers/%: tests/fuzz/%.c tests/fuzz/fuzz.h tests/fuzz/replay.c $(BUILD)/cli.a $(BUILD)/lib.a $(FUZZ_STORES) $(BUILD)/flags
	$(call say,FUZZ,$@)
	@mkdir -p $(@D)
	$(Q)$(CC_ALL) -fPIE -Itests/fuzz $(POSTGRES_CFLAGS) $(DEP) $(USER_FLAGS) -o $@ $< $(FUZZ_MAIN) -pie $(HARDEN_LD) $(LDFLAGS) \
	    $(BUILD)/cli.a $(FUZZ_STORES) $(BUILD)/lib.a $(LIBS) $(foreach x,$(UNIT_STORES),$($x_LIBS))

# The seeds of each target, a file each.
$(BUILD)/seeds: tests/fuzz/seeds $(wildcard tests/fuzz/*.seeds)
	$(call say,SEEDS,$@)
	@mkdir -p $(@D)
	$(Q)rm -rf $@ $@.new && $< $@.new $(filter %.seeds,$^) && mv $@.new $@

# They see dlock.h alone. The library finds its modules beside the program.
vpath %.c tests/programs lib/examples
$(BUILD)/programs/%: %.c tests/programs/lib.h $(BUILD)/programs/include/dlock.h $(BUILD)/libdlock.a $(BUILD)/flags | $(if $(MODULES),$(MODULES) $(BUILD)/programs/dlock-modules)
	$(call say,CC,$@)
	$(Q)$(CC) -std=gnu11 -D_GNU_SOURCE $(WARN) $(SANFLAGS) $(HARDEN) -fPIE -I$(BUILD)/programs/include $(USER_FLAGS) -o $@ $< -pie $(LDFLAGS) $(BUILD)/libdlock.a $(LIBS)

$(BUILD)/programs/include/dlock.h: lib/dlock.h
	@mkdir -p $(@D)
	$(Q)cp $< $@

$(BUILD)/programs/dlock-modules:
	@mkdir -p $(@D)
	$(Q)ln -sfn ../dlock-modules $@

# Helpers are never sanitized: they are not what is tested, and are started often. Nor are preload
# shims, which are loaded into other people's programs.
$(BUILD)/test/%: tests/support/helpers/%.c $(BUILD)/flags
	$(call say,CC,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LANG_C) $(DEFS) $(WARN) $(HARDEN) -fPIE $(DEP) $(USER_FLAGS) -o $@ $< -pie $(LDFLAGS) -pthread

$(BUILD)/test/%.so: tests/support/preload/%.c $(BUILD)/flags
	$(call say,CC,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LANG_C) $(DEFS) $(WARN) -fPIC $(DEP) $(USER_FLAGS) -shared -o $@ $< $(LDFLAGS) -ldl

# Modules as they should not be, and one that says that it was loaded.
$(BUILD)/test/%.so: tests/support/modules/%.c $(BUILD)/flags $(BUILD)/build-id
	$(call say,CC,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LANG_C) $(DEFS) $(WARN) -fPIC -DDLOCK_MODULE -DDLOCK_BUILD_ID='"$(BUILD_ID)"' $(DEP) $(USER_FLAGS) \
	    -shared -o $@ $< $(LDFLAGS)

# dlock - flock(1) for more than one machine.      `make help` lists the targets.
#
# User variables: CC CFLAGS CPPFLAGS LDFLAGS PREFIX DESTDIR BUILD WITH_REDIS SAN WERROR V and
# the directories below. CFLAGS, CPPFLAGS and LDFLAGS of the user come last and so win.

PREFIX       ?= /usr/local
DESTDIR      ?=
BINDIR       ?= $(PREFIX)/bin
LIBDIR       ?= $(PREFIX)/lib
INCLUDEDIR   ?= $(PREFIX)/include
DATADIR      ?= $(PREFIX)/share
MANDIR       ?= $(DATADIR)/man
PKGCONFIGDIR ?= $(LIBDIR)/pkgconfig
BASHCOMPDIR  ?= $(DATADIR)/bash-completion/completions
ZSHCOMPDIR   ?= $(DATADIR)/zsh/site-functions
FISHCOMPDIR  ?= $(DATADIR)/fish/vendor_completions.d

BUILD        ?= build
# Stores: builtin | no
WITH_REDIS   ?= builtin
# Sanitizers, e.g. SAN=address,undefined; use a BUILD of its own: make BUILD=build/asan SAN=...
SAN          ?=
# Warnings are errors: for CI only, since another compiler finds other ones.
WERROR       ?=
V            ?=

CFLAGS       ?= -O2 -g
PKG_CONFIG   ?= pkg-config
INSTALL      ?= install
CLANG_FORMAT ?= clang-format
MANDOC       ?= mandoc
JOBS         ?= $(shell nproc 2>/dev/null || echo 2)

Q := $(if $(V),,@)
say = $(if $(V),@:,@echo "  $(1)	$(2)")

# ------------------------------------------------------------------ flags ---

VERSION := $(shell sed -n 's/^\#define DLOCK_VERSION "\(.*\)"/\1/p' lib/dlock.h)
SOMAJOR := 0
# The exact build. Only the files that show it depend on it.
GITDESC := $(shell test -e .git && GIT_OPTIONAL_LOCKS=0 git describe --always --dirty 2>/dev/null)
BUILD_ID ?= $(VERSION)$(if $(GITDESC),+$(GITDESC))

WARN := -Wall -Wextra -Wconversion -Wshadow -Wstrict-prototypes -Wmissing-prototypes \
        -Wformat-security -Wvla $(if $(WERROR),-Werror)

ifneq ($(SAN),)
SANFLAGS := -fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=all
HARDEN   ?=
else
SANFLAGS :=
# _FORTIFY_SOURCE needs optimisation; CET exists on x86 only.
HARDEN   ?= -fstack-protector-strong \
            $(if $(filter -O1 -O2 -O3 -Os,$(CFLAGS)),-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2) \
            $(if $(filter x86_64-% i686-%,$(shell $(CC) -dumpmachine 2>/dev/null)),-fcf-protection)
endif
HARDEN_LD ?= -Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack

DEFS     := -D_GNU_SOURCE -iquote lib -iquote cli
LANG_C   := -std=gnu11 -pthread
LIBS     := -pthread
LIBS_SO  := -pthread

REDIS_SRC := $(wildcard $(addprefix lib/backends/,redis*.c rconn*.c rscript*.c redlock*.c sentinel*.c))
ifeq ($(WITH_REDIS),builtin)
  DEFS += -DWITH_REDIS=1
  # The Debian package's "Cflags: -I/usr/include/hiredis" is not wanted: we say <hiredis/hiredis.h>.
  HIREDIS_LIBS   ?= $(or $(shell $(PKG_CONFIG) --libs hiredis 2>/dev/null),-lhiredis)
  # Linked statically where possible: one shared object less to load at every start.
  HIREDIS_STATIC ?= $(if $(filter /%,$(shell $(CC) -print-file-name=libhiredis.a 2>/dev/null)),yes,no)
  ifeq ($(HIREDIS_STATIC),yes)
    LIBS  += -Wl,-Bstatic $(HIREDIS_LIBS) -Wl,-Bdynamic
  else
    LIBS  += $(HIREDIS_LIBS)
  endif
  LIBS_SO += $(HIREDIS_LIBS)
  NEED_HEADERS := hiredis/hiredis.h
else ifneq ($(WITH_REDIS),no)
  $(error WITH_REDIS=$(WITH_REDIS): builtin or no)
endif

CC_ALL = $(CC) $(LANG_C) $(DEFS) $(WARN) $(SANFLAGS) $(HARDEN)
USER   = $(CPPFLAGS) $(CFLAGS)
DEP    = -MMD -MP
# A sanitizer's symbols come from the program.
NO_UNDEF := -Wl,-z,defs
ifneq ($(SAN),)
NO_UNDEF :=
endif
LINK   = $(CC) $(SANFLAGS) $(CFLAGS) $(HARDEN_LD) -Wl,--as-needed

# ---------------------------------------------------------------- sources ---

LIB_SRC  := $(wildcard lib/*.c lib/backends/*.c)
ifeq ($(WITH_REDIS),no)
LIB_SRC  := $(filter-out $(REDIS_SRC),$(LIB_SRC))
endif
CLI_SRC  := $(wildcard cli/*.c)
FAKE_SRC := $(wildcard tests/fake/*.c)
UNIT_SRC := $(wildcard tests/unit/test_*.c)
HELP_SRC := $(wildcard tests/helpers/*.c)
LOAD_SRC := $(wildcard tests/preload/*.c)

O := $(BUILD)/obj
LIB_OBJ  := $(LIB_SRC:%.c=$O/%.o)
CLI_OBJ  := $(CLI_SRC:%.c=$O/%.o)
PIC_OBJ  := $(LIB_SRC:%.c=$O/pic/%.o)
TEST_OBJ := $(LIB_SRC:%.c=$O/test/%.o) $(CLI_SRC:%.c=$O/test/%.o) $(FAKE_SRC:%.c=$O/test/%.o)
UNIT_BIN := $(UNIT_SRC:tests/unit/%.c=$(BUILD)/unit/%)
HELP_BIN := $(HELP_SRC:tests/helpers/%.c=$(BUILD)/test/%)
LOAD_BIN := $(LOAD_SRC:tests/preload/%.c=$(BUILD)/test/%.so)

# ---------------------------------------------------------------- targets ---

all: $(BUILD)/dlock $(BUILD)/libdlock.a $(BUILD)/libdlock.so $(BUILD)/libdlock.pc ## build everything (default)

demo: ## see it work: one command holds the lock, one waits, one is refused
	@tests/deps demo
	@$(SUBMAKE) $(BUILD)/dlock
	@DLOCK=$(BUILD)/dlock tests/demo

check: ## install what is missing, build, run all tests
	@tests/deps check
	@$(SUBMAKE) check-build
	@BUILD=$(BUILD) SAN=$(SAN) CC='$(CC)' MAKE='$(MAKE)' tests/run

check-unit: ## only the unit tests (nothing is installed)
	@$(SUBMAKE) $(UNIT_BIN)
	@BUILD=$(BUILD) SAN=$(SAN) CC='$(CC)' MAKE='$(MAKE)' tests/run --unit

check-asan: ## the whole suite under AddressSanitizer and UBSan
	@$(MAKE) BUILD=$(BUILD)/asan SAN=address,undefined check

check-tsan: ## what uses threads, under ThreadSanitizer
	@tests/deps check
	@$(SUBMAKE) BUILD=$(BUILD)/tsan SAN=thread check-build
	@BUILD=$(BUILD)/tsan SAN=thread CC='$(CC)' MAKE='$(MAKE)' tests/run --tags thread

check-build: $(BUILD)/dlock $(BUILD)/test/dlock $(UNIT_BIN) $(HELP_BIN) $(LOAD_BIN) all

deps: ## install what the build and the tests need (Debian; root or sudo)
	@tests/deps check

lint: $(BUILD)/libdlock.so ## manual page, format, exported symbols
	@for f in $(wildcard man/*.[1-8]); do echo "$(MANDOC) $$f"; $(MANDOC) -T lint -W warning $$f || exit 1; done
	@echo "$(CLANG_FORMAT)"; $(CLANG_FORMAT) --dry-run -Werror $(FORMAT_SRC)
	@tests/symbols $(BUILD)/libdlock.so

FORMAT_SRC = $(sort $(wildcard lib/*.[ch] lib/backends/*.[ch] cli/*.[ch] tests/*/*.[ch]))
format: ## apply .clang-format
	$(CLANG_FORMAT) -i $(FORMAT_SRC)

bench: $(BUILD)/dlock ## what a lock costs
	@DLOCK=$(BUILD)/dlock tests/bench

install: all ## install below $(DESTDIR)$(PREFIX)
	$(INSTALL) -d $(DESTDIR)$(BINDIR) $(DESTDIR)$(LIBDIR) $(DESTDIR)$(INCLUDEDIR) $(DESTDIR)$(PKGCONFIGDIR)
	$(INSTALL) -m 755 $(BUILD)/dlock $(DESTDIR)$(BINDIR)/dlock
	$(INSTALL) -m 644 lib/dlock.h $(DESTDIR)$(INCLUDEDIR)/dlock.h
	$(INSTALL) -m 644 $(BUILD)/libdlock.a $(DESTDIR)$(LIBDIR)/libdlock.a
	$(INSTALL) -m 755 $(BUILD)/libdlock.so.$(SOMAJOR) $(DESTDIR)$(LIBDIR)/libdlock.so.$(VERSION)
	ln -sf libdlock.so.$(VERSION) $(DESTDIR)$(LIBDIR)/libdlock.so.$(SOMAJOR)
	ln -sf libdlock.so.$(SOMAJOR) $(DESTDIR)$(LIBDIR)/libdlock.so
	$(INSTALL) -m 644 $(BUILD)/libdlock.pc $(DESTDIR)$(PKGCONFIGDIR)/libdlock.pc
	$(foreach f,$(MAN),$(INSTALL) -D -m 644 $f $(DESTDIR)$(MANDIR)/man$(subst .,,$(suffix $f))/$(notdir $f)$(nl))
	$(if $(wildcard completions/dlock.bash),$(INSTALL) -D -m 644 completions/dlock.bash $(DESTDIR)$(BASHCOMPDIR)/dlock)
	$(if $(wildcard completions/_dlock),$(INSTALL) -D -m 644 completions/_dlock $(DESTDIR)$(ZSHCOMPDIR)/_dlock)
	$(if $(wildcard completions/dlock.fish),$(INSTALL) -D -m 644 completions/dlock.fish $(DESTDIR)$(FISHCOMPDIR)/dlock.fish)

uninstall: ## remove what install put there
	rm -f $(DESTDIR)$(BINDIR)/dlock $(DESTDIR)$(INCLUDEDIR)/dlock.h $(DESTDIR)$(PKGCONFIGDIR)/libdlock.pc \
	    $(addprefix $(DESTDIR)$(LIBDIR)/,libdlock.a libdlock.so libdlock.so.$(SOMAJOR) libdlock.so.$(VERSION)) \
	    $(DESTDIR)$(BASHCOMPDIR)/dlock $(DESTDIR)$(ZSHCOMPDIR)/_dlock $(DESTDIR)$(FISHCOMPDIR)/dlock.fish \
	    $(foreach f,$(MAN),$(DESTDIR)$(MANDIR)/man$(subst .,,$(suffix $f))/$(notdir $f))

clean: ## remove $(BUILD)
	rm -rf $(BUILD)

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^=#]*## \(.*\)/\1|\2/p' $(firstword $(MAKEFILE_LIST)) | \
	    while IFS='|' read -r t d; do printf '  %-12s %s\n' "$$t" "$$d"; done
	@echo
	@echo '  variables:   PREFIX DESTDIR BINDIR LIBDIR MANDIR ... CC CFLAGS LDFLAGS BUILD V=1'
	@echo '               WITH_REDIS=builtin|no  SAN=address,undefined|thread  WERROR=1'

MAN := $(wildcard man/*.[1-8])
define nl


endef
# A make of our own after `deps`: what the first one found out about the compiler may be out of date.
SUBMAKE = $(MAKE) --no-print-directory $(if $(findstring jobserver,$(MAKEFLAGS)),,-j$(JOBS))

# ------------------------------------------------------------------ rules ---

# Rewritten only when the flags have changed; every object depends on it.
FLAGS_NOW = $(CC_ALL) | $(USER) | $(LINK) $(LDFLAGS) | $(LIBS) | $(LIBS_SO)
$(BUILD)/flags: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' '$(subst ','\'',$(FLAGS_NOW))' > $@.$$$$; \
	if cmp -s $@.$$$$ $@; then rm -f $@.$$$$; else \
	    for h in $(NEED_HEADERS); do \
	        echo "#include <$$h>" | $(CC) $(USER) -E -x c - >/dev/null 2>&1 || { rm -f $@.$$$$; \
	            echo "make: <$$h> not found: run 'make deps', or build with WITH_REDIS=no" >&2; exit 1; }; \
	    done; mv -f $@.$$$$ $@; fi

# What is linked: a file that was removed leaves no newer prerequisite behind.
$(BUILD)/sources: FORCE
	@mkdir -p $(@D)
	@echo '$(sort $(LIB_SRC) $(CLI_SRC) $(FAKE_SRC))' | cmp -s - $@ || \
	    echo '$(sort $(LIB_SRC) $(CLI_SRC) $(FAKE_SRC))' > $@

$(BUILD)/build-id: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' '$(BUILD_ID)' | cmp -s - $@ || printf '%s\n' '$(BUILD_ID)' > $@

ID_FILES := lib/registry cli/main
ID_OBJ   := $(ID_FILES:%=$O/%.o) $(ID_FILES:%=$O/pic/%.o) $(ID_FILES:%=$O/test/%.o)
$(ID_OBJ): $(BUILD)/build-id
$(ID_OBJ): ID = -DDLOCK_BUILD_ID='"$(BUILD_ID)"'

$O/%.o: %.c $(BUILD)/flags
	$(call say,CC,$<)
	@mkdir -p $(@D)
	$(Q)$(CC_ALL) -fvisibility=hidden -fPIE $(ID) $(DEP) $(USER) -c -o $@ $<

# For the shared library the map file decides what is visible.
$O/pic/%.o: %.c $(BUILD)/flags
	$(call say,CC,$< (pic))
	@mkdir -p $(@D)
	$(Q)$(CC_ALL) -fPIC $(ID) $(DEP) $(USER) -c -o $@ $<

$O/test/%.o: %.c $(BUILD)/flags
	$(call say,CC,$< (test))
	@mkdir -p $(@D)
	$(Q)$(CC_ALL) -fvisibility=hidden -fPIE -DDLOCK_TEST -Itests/fake $(ID) $(DEP) $(USER) -c -o $@ $<

$(BUILD)/dlock: $(CLI_OBJ) $(LIB_OBJ) $(BUILD)/sources
	$(call say,LD,$@)
	$(Q)$(LINK) -pie -o $@ $(filter %.o,$^) $(LDFLAGS) $(LIBS)

# The same program with the scripted fake store and the test hooks.
$(BUILD)/test/dlock: $(TEST_OBJ) $(BUILD)/sources
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(LINK) -pie -o $@ $(filter %.o,$^) $(LDFLAGS) $(LIBS)

$(BUILD)/libdlock.a: $(LIB_OBJ) $(BUILD)/sources
	$(call say,AR,$@)
	$(Q)rm -f $@ && $(AR) rcs $@ $(filter %.o,$^)

# An archive, so that a unit test links only what it uses.
$(BUILD)/cli.a: $(filter-out %/main.o,$(CLI_OBJ)) $(BUILD)/sources
	$(call say,AR,$@)
	$(Q)rm -f $@ && $(AR) rcs $@ $(filter %.o,$^)

$(BUILD)/libdlock.so.$(SOMAJOR): $(PIC_OBJ) lib/libdlock.map $(BUILD)/sources
	$(call say,LD,$@)
	$(Q)$(LINK) -shared -Wl,-soname,libdlock.so.$(SOMAJOR) -Wl,--version-script=lib/libdlock.map \
	    $(NO_UNDEF) -o $@ $(PIC_OBJ) $(LDFLAGS) $(LIBS_SO)

$(BUILD)/libdlock.so: $(BUILD)/libdlock.so.$(SOMAJOR)
	$(Q)ln -sf $(<F) $@

$(BUILD)/libdlock.pc: Makefile $(BUILD)/flags lib/dlock.h
	$(Q)printf '%s\n' 'prefix=$(PREFIX)' 'libdir=$(LIBDIR)' 'includedir=$(INCLUDEDIR)' '' \
	    'Name: libdlock' 'Description: locks with leases on files and networked stores' \
	    'Version: $(VERSION)' 'Libs: -L$${libdir} -ldlock' 'Libs.private: $(LIBS_SO)' \
	    'Cflags: -I$${includedir}' > $@

$(BUILD)/unit/%: tests/unit/%.c tests/unit/unit.h $(BUILD)/cli.a $(BUILD)/libdlock.a $(BUILD)/flags
	$(call say,UNIT,$@)
	@mkdir -p $(@D)
	$(Q)$(CC_ALL) -fPIE -Itests/unit $(DEP) $(USER) -o $@ $< -pie $(HARDEN_LD) $(LDFLAGS) \
	    $(BUILD)/cli.a $(BUILD)/libdlock.a $(LIBS)

$(BUILD)/test/%: tests/helpers/%.c $(BUILD)/flags
	$(call say,CC,$@)
	@mkdir -p $(@D)
	$(Q)$(CC_ALL) -fPIE $(DEP) $(USER) -o $@ $< -pie $(LDFLAGS) -pthread

# Preload shims are never sanitized: they are loaded into other people's programs.
$(BUILD)/test/%.so: tests/preload/%.c $(BUILD)/flags
	$(call say,CC,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LANG_C) $(DEFS) $(WARN) -fPIC $(DEP) $(USER) -shared -o $@ $< $(LDFLAGS) -ldl

FORCE:
.SUFFIXES:
.DELETE_ON_ERROR:
.PHONY: all demo check check-unit check-asan check-tsan check-build deps lint format bench install uninstall clean help FORCE

-include $(shell find $(BUILD) -name '*.d' -not -path '$(BUILD)/asan/*' -not -path '$(BUILD)/tsan/*' 2>/dev/null)

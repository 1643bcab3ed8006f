# dlock - flock(1) for more than one machine.      `make help` lists the targets.
#
# User variables: CC CFLAGS CPPFLAGS LDFLAGS PREFIX DESTDIR BUILD WITH_REDIS WITH_TLS WITH_POSTGRES
# WITH_MYSQL WITH_ZOOKEEPER SAN WERROR V and the directories below. CFLAGS, CPPFLAGS and LDFLAGS of
# the user come last and so win.

PREFIX       ?= /usr/local
DESTDIR      ?=
BINDIR       ?= $(PREFIX)/bin
LIBDIR       ?= $(PREFIX)/lib
INCLUDEDIR   ?= $(PREFIX)/include
DATADIR      ?= $(PREFIX)/share
MANDIR       ?= $(DATADIR)/man
# For the examples of the library; empty: they are not installed.
DOCDIR       ?= $(DATADIR)/doc/dlock
MODDIR       ?= $(LIBDIR)/dlock
PKGCONFIGDIR ?= $(LIBDIR)/pkgconfig
BASHCOMPDIR  ?= $(DATADIR)/bash-completion/completions
ZSHCOMPDIR   ?= $(DATADIR)/zsh/site-functions
# fish looks there below /usr/local only where XDG_DATA_DIRS is set.
FISHCOMPDIR  ?= $(if $(PREFIX:/usr/local=),$(DATADIR)/fish/vendor_completions.d,/etc/fish/completions)
TMPFILESDIR  ?= $(PREFIX)/lib/tmpfiles.d

BUILD        ?= build
# Stores: builtin | no, and module: loaded on first use, for the sake of all that do not use it.
WITH_REDIS   ?= builtin
WITH_POSTGRES ?= module
WITH_MYSQL   ?= module
WITH_ZOOKEEPER ?= module
# TLS for Redis: module | builtin | no.
WITH_TLS     ?= $(if $(filter no,$(WITH_REDIS)),no,module)
# Sanitizers, e.g. SAN=address,undefined; use a BUILD of its own: make BUILD=build/asan SAN=...
SAN          ?=
# Counters of each line and branch (clang), in $(BUILD)/raw: see tests/coverage/run.
COVERAGE     ?=
# Warnings are errors: for CI only, since another compiler finds other ones.
WERROR       ?=
# Set where a build is only tested: the shared objects are made of the program's objects.
ONE_KIND     ?= $(SAN)$(COVERAGE)
V            ?=

# char is unsigned in a sanitizer's build, as on arm64: so the tests see both.
CFLAGS       ?= $(if $(SAN),-Og -g1 -funsigned-char,$(if $(COVERAGE),-O1 -g1,-O2 -g))
PKG_CONFIG   ?= pkg-config
INSTALL      ?= install
# That of the compiler, which may be one for another machine.
OBJCOPY      ?= $(shell $(CC) -print-prog-name=objcopy)
CLANG_FORMAT ?= clang-format
MANDOC       ?= mandoc
JOBS         ?= $(shell nproc 2>/dev/null || echo 2)

comma := ,
Q := $(if $(V),,@)
# $(call quoted,TEXT): one word for the shell.
quoted = '$(subst ','\'',$(1))'
# $(call known,FLAG): it, if the compiler knows it.
known = $(if $(shell $(CC) -Werror $(1) -E -x c /dev/null >/dev/null 2>&1 && echo yes),$(1))
say = $(if $(V),@:,@echo "  $(1)	$(2)")

# ------------------------------------------------------------------ flags ---

VERSION := $(shell sed -n 's/^\#define DLOCK_VERSION "\(.*\)"/\1/p' lib/dlock.h)
SOMAJOR := 0
# The exact build: the version alone in a tarball and at the commit of its tag, the full package
# version in a package. Only the files that show it depend on it. Git does not answer to another
# user than the tree's owner, as root often is in `make install`: then it is the build that is
# there, if it is of this version.
GITDESC := $(shell test -e .git && GIT_OPTIONAL_LOCKS=0 git describe --tags --match 'v$(VERSION)' --always --dirty 2>/dev/null)
BUILT_ID := $(if $(GITDESC),,$(filter $(VERSION) $(VERSION)+%,$(shell test -e .git && sed 's/ .*//' $(BUILD)/build-id 2>/dev/null)))
BUILD_ID ?= $(or $(BUILT_ID),$(VERSION)$(if $(filter-out v$(VERSION),$(GITDESC)),+$(GITDESC)))

WARN := -Wall -Wextra -Wconversion -Wshadow -Wstrict-prototypes -Wmissing-prototypes \
        -Wformat-security -Wvla -Werror=implicit-function-declaration $(if $(WERROR),-Werror)

ifneq ($(SAN),)
SANFLAGS := -fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=all
HARDEN   ?=
else
# %c: the counters are a shared mapping of the file, so those of a process that is killed count too.
# %m: one file for each program or module. A static function's counters have the name of its file,
# and there is more than one acquire.c: so with its folder.
SANFLAGS = $(if $(COVERAGE),-Qunused-arguments -fcoverage-mapping -mllvm -runtime-counter-relocation=true \
            -fprofile-instr-generate=$(call quoted,$(abspath $(BUILD))/raw/%m%c.profraw) \
            $(if $(filter %.c,$<),-Xclang -main-file-name -Xclang $<))
# _FORTIFY_SOURCE needs optimisation: the last -O counts. CET exists on x86 only. The linker marks
# its output for CET (readelf -n: IBT, SHSTK) if each input is marked. Of Debian 12 the C library's
# Scrt1.o, crti.o and crtn.o are not, nor libhiredis.a; and the loader, which asks for the mark in
# libc.so as well, would find none. -z force-ibt would be a false mark: _start has no endbr64.
OPTIMISED = $(filter-out -O0,$(lastword $(filter -O%,$(USER_FLAGS))))
HARDEN   ?= -fstack-protector-strong \
            $(if $(findstring _FORTIFY_SOURCE,$(USER_FLAGS)),,$(if $(OPTIMISED),-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2)) \
            $(if $(filter x86_64-% i686-%,$(shell $(CC) -dumpmachine 2>/dev/null)),-fcf-protection)
endif
HARDEN_LD ?= -Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack

# Files beyond 2 GiB and times beyond 2038 on 32-bit machines too; there the second needs the first.
DEFS     := -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 -D_TIME_BITS=64 -iquote lib -iquote cli
# Which parts this build has: for lib/registry.c alone, so that no other object depends on them.
WITH_DEFS :=
LANG_C   := -std=gnu11 -pthread
LIBS     := -pthread -ldl
LIBS_SO  := -pthread -ldl

# Each part that can be left out has a folder of sources (X_SRC), the headers that it needs
# (X_HEADERS), and flags of its own (X_CFLAGS, X_LIBS; X_LIBS_SO for the shared library).
# WITH_X=module makes dlock-modules/x.so of it, with a copy of X_ENGINE, which needs none of them.
PARTS := REDIS TLS POSTGRES MYSQL ZOOKEEPER

REDIS_SRC     := $(sort $(wildcard lib/backends/redis/*.c lib/tls/config.c lib/tls/io.c))
REDIS_HEADERS := hiredis/hiredis.h
REDIS_KINDS   := builtin no
GEN           := -iquote $(BUILD)/gen
REDIS_CFLAGS  := $(GEN)
# The Debian package's "Cflags: -I/usr/include/hiredis" is not wanted: we say <hiredis/hiredis.h>.
HIREDIS_LIBS   ?= $(or $(shell $(PKG_CONFIG) --libs hiredis 2>/dev/null),-lhiredis)
# Linked statically where possible: one shared object less to load at every start.
HIREDIS_STATIC ?= $(if $(filter /%,$(shell $(CC) -print-file-name=libhiredis.a 2>/dev/null)),yes,no)
REDIS_LIBS    := $(if $(filter yes,$(HIREDIS_STATIC)),-Wl$(comma)-Bstatic $(HIREDIS_LIBS) -Wl$(comma)-Bdynamic,$(HIREDIS_LIBS))
REDIS_LIBS_SO := $(HIREDIS_LIBS)

TLS_SRC     := lib/tls/openssl.c
TLS_HEADERS := openssl/ssl.h
TLS_CFLAGS  ?= $(shell $(PKG_CONFIG) --cflags libssl 2>/dev/null)
TLS_LIBS    ?= $(or $(shell $(PKG_CONFIG) --libs libssl 2>/dev/null),-lssl) -lcrypto

# The engine of the SQL stores.
TABLE_SRC := $(sort $(wildcard lib/backends/table/*.c))

POSTGRES_SRC     := $(sort $(wildcard lib/backends/postgres/*.c))
POSTGRES_ENGINE  := $(TABLE_SRC)
POSTGRES_HEADERS := libpq-fe.h sha2.h
PG_CFLAGS ?= $(or $(shell $(PKG_CONFIG) --cflags libpq 2>/dev/null),$(addprefix -I,$(shell pg_config --includedir 2>/dev/null)))
PG_LIBS   ?= $(or $(shell $(PKG_CONFIG) --libs libpq 2>/dev/null),$(addprefix -L,$(shell pg_config --libdir 2>/dev/null)) -lpq) -lmd
POSTGRES_CFLAGS = $(GEN) $(PG_CFLAGS)
POSTGRES_LIBS   = $(PG_LIBS)

MYSQL_SRC     := $(sort $(wildcard lib/backends/mysql/*.c))
MYSQL_ENGINE  := $(TABLE_SRC)
MYSQL_HEADERS := mysql.h
MARIADB_CFLAGS ?= $(or $(shell $(PKG_CONFIG) --cflags libmariadb 2>/dev/null),-I/usr/include/mariadb)
MARIADB_LIBS   ?= $(or $(shell $(PKG_CONFIG) --libs-only-l libmariadb 2>/dev/null),-lmariadb)
MYSQL_CFLAGS = $(GEN) $(MARIADB_CFLAGS)
MYSQL_LIBS   = $(MARIADB_LIBS)

ZOOKEEPER_SRC     := $(sort $(wildcard lib/backends/zookeeper/*.c lib/backends/zookeeper/wire/*.c))
ZOOKEEPER_HEADERS := zookeeper/zookeeper.h
# The module links it statically where possible: then it need not be installed, and its system calls
# go through wire/calls.c, the packet guard, which checks what a server sends before the library
# reads it. A store that is built in has no guard.
ZK_STATIC ?= $(if $(filter /%,$(shell $(CC) -print-file-name=libzookeeper_mt.a 2>/dev/null)),yes,no)
ifeq ($(ZK_STATIC),yes)
  ZK_LIBS     ?= -Wl,-Bstatic -lzookeeper_mt -Wl,-Bdynamic -lm
  ZK_ARCHIVE  ?= $(shell $(CC) -print-file-name=libzookeeper_mt.a)
  ZK_CALLS    := pthread_create getaddrinfo socket connect getsockopt send recv read write pipe poll close
  ZK_WRAP     := $(addprefix -Wl$(comma)--wrap=,$(ZK_CALLS))
else
  ZK_LIBS     ?= -lzookeeper_mt
endif
ZOOKEEPER_CFLAGS     = $(ZK_CFLAGS)
ZOOKEEPER_MOD_CFLAGS = $(if $(ZK_WRAP),-DZK_WRAP)
ZOOKEEPER_LIBS       = $(ZK_LIBS)
ZOOKEEPER_LIBS_SO    = -lzookeeper_mt
ZOOKEEPER_MOD_LIBS   = $(ZK_WRAP) $(ZK_LIBS)

lower = $(subst REDIS,redis,$(subst TLS,tls,$(subst POSTGRES,postgres,$(subst MYSQL,mysql,$(subst ZOOKEEPER,zookeeper,$(1))))))
module_of = $(BUILD)/dlock-modules/$(call lower,$(1)).so

# The flags of the part that a source belongs to, set by part_rules; none for the rest.
PART :=

# $(call part,X): what WITH_X means.
define part
ifeq ($$(filter $$(or $$($(1)_KINDS),module builtin no),$$(WITH_$(1))),)
  $$(error WITH_$(1)=$$(WITH_$(1)): $$(if $$($(1)_KINDS),,module$$(comma) )builtin or no)
else ifeq ($$(WITH_$(1)),builtin)
  WITH_DEFS += -DWITH_$(1)=1
  LIBS    += $$($(1)_LIBS)
  LIBS_SO += $$(or $$($(1)_LIBS_SO),$$($(1)_LIBS))
else
  LEFT_OUT += $$($(1)_SRC)
endif
ifeq ($$(WITH_$(1)),module)
  WITH_DEFS += -DWITH_$(1)_MODULE=1
  MODULES += $$(call module_of,$(1))
  MOD_OBJ += $$(patsubst %.c,$$O/mod/%.o,$$($(1)_SRC) $$($(1)_ENGINE))
endif
endef
MODULES  :=
LEFT_OUT :=
$(foreach x,$(PARTS),$(eval $(call part,$x)))
LEFT_OUT += $(if $(filter builtin,$(WITH_POSTGRES) $(WITH_MYSQL)),,$(TABLE_SRC))

ifeq ($(WITH_ZOOKEEPER)$(ZK_STATIC),moduleyes)
WITH_DEFS += -DWITH_ZOOKEEPER_GUARD=1
endif

# The same bytes, wherever the tree is. Compilers name the folder as PWD does, which may lead
# through links.
export PWD := $(CURDIR)
HERE  := $(call known,-ffile-prefix-map=$(call quoted,$(CURDIR))=.)
CC_ALL = $(CC) $(LANG_C) $(DEFS) $(WARN) $(SANFLAGS) $(HARDEN) $(HERE)
USER_FLAGS = $(CPPFLAGS) $(CFLAGS)
DEP    = -MMD -MP
# A sanitizer's symbols come from the program.
NO_UNDEF := -Wl,-z,defs
ifneq ($(SAN),)
NO_UNDEF :=
endif
LINK   = $(CC) $(SANFLAGS) $(CFLAGS) $(HARDEN_LD) -Wl,--as-needed

# ---------------------------------------------------------------- sources ---

# Sorted, for make does not always do it.
LIB_SRC  := $(sort $(filter-out $(LEFT_OUT),$(wildcard lib/*.c lib/tls/*.c lib/backends/*.c lib/backends/*/*.c lib/backends/*/*/*.c)))
# session and table come first: others include fragments of table.
SQL_SRC  := $(addprefix lib/backends/postgres/sql/,$(addsuffix .sql,session table table_shared table_runs advisory check))
MY_SQL_SRC := $(addprefix lib/backends/mysql/sql/,$(addsuffix .sql,table table_shared table_runs))
LUA_SRC  := $(sort $(wildcard lib/backends/redis/scripts/*.lua))
LUA_PARTS := $(sort $(wildcard lib/backends/redis/scripts/parts/*.lua))
CLI_SRC  := $(sort $(wildcard cli/*.c))

O := $(BUILD)/obj
LIB_OBJ  := $(LIB_SRC:%.c=$O/%.o)
CLI_OBJ  := $(CLI_SRC:%.c=$O/%.o)
PIC      := $O$(if $(ONE_KIND),,/pic)
PIC_OBJ  := $(LIB_SRC:%.c=$(PIC)/%.o)

# ---------------------------------------------------------------- targets ---

all: $(BUILD)/dlock $(MODULES) $(BUILD)/libdlock.a $(BUILD)/libdlock.so $(BUILD)/libdlock.pc ## build everything (default)

demo: ## see it work: one command holds the lock, one waits, one is refused
	@tests/deps demo
	@$(SUBMAKE) $(BUILD)/dlock
	@DLOCK=$(BUILD)/dlock tests/demo

deps: ## install what the build and the tests need (Debian; root or sudo)
	@tests/deps check

lint: all ## manual pages, format, exported symbols, Lua scripts, layers
	@for f in $(wildcard man/*.[1-8]); do echo "$(MANDOC) $$f"; $(MANDOC) -T lint -W warning $$f || exit 1; done
	@echo "$(CLANG_FORMAT)"; $(CLANG_FORMAT) --dry-run -Werror $(FORMAT_SRC)
	@MANDOC='$(MANDOC)' tests/lint-manual man
	@tests/examples man/libdlock.3
	@tests/lint-symbols $(BUILD)/libdlock.so $(BUILD)/libdlock.a
	@tests/lint-lua $(LUA_SRC) $(LUA_PARTS)
	@tests/lint $(CLI_OBJ) $(LIB_OBJ) $(sort $(MOD_OBJ))
	@! grep -nw DLOCK_TEST $(wildcard lib/*.h lib/*/*.h lib/*/*/*.h lib/*/*/*/*.h cli/*.h) || \
	    { echo "DLOCK_TEST in a header: the Makefile looks for it in lib/ and cli/*.c only" >&2; exit 1; }
	@! grep -rnE '^ *! ' --include='*.bats' --include='*.bash' tests | grep -vE '\|\||&&|\\$$' || \
	    { echo "bash does not end a test at a '!' that fails: say  ! ... || fail 'why'" >&2; exit 1; }

FORMAT_SRC = $(sort $(wildcard lib/*.[ch] lib/tls/*.[ch] lib/backends/*.[ch] lib/backends/*/*.[ch] lib/backends/*/*/*.[ch] lib/examples/*.c cli/*.[ch]) $(TEST_C))
format: ## apply .clang-format
	$(CLANG_FORMAT) -i $(FORMAT_SRC)

# It may have a space.
D = $(call quoted,$(DESTDIR))

install: all ## install below $(DESTDIR)$(PREFIX)
	$(INSTALL) -d $D$(BINDIR) $D$(LIBDIR) $D$(INCLUDEDIR) $D$(PKGCONFIGDIR)
	$(INSTALL) -m 755 $(BUILD)/dlock $D$(BINDIR)/dlock
	$(INSTALL) -m 644 lib/dlock.h $D$(INCLUDEDIR)/dlock.h
	$(INSTALL) -m 644 $(BUILD)/libdlock.a $D$(LIBDIR)/libdlock.a
	$(INSTALL) -m 755 $(BUILD)/libdlock.so.$(SOMAJOR) $D$(LIBDIR)/libdlock.so.$(VERSION)
	ln -sf libdlock.so.$(VERSION) $D$(LIBDIR)/libdlock.so.$(SOMAJOR)
	ln -sf libdlock.so.$(SOMAJOR) $D$(LIBDIR)/libdlock.so
	$(if $(MODULES),$(INSTALL) -d -m 755 $D$(MODDIR))
	$(if $(MODULES),$(INSTALL) -m 755 $(MODULES) $D$(MODDIR))
	$(INSTALL) -m 644 $(BUILD)/libdlock.pc $D$(PKGCONFIGDIR)/libdlock.pc
	$(foreach f,$(MAN),$(INSTALL) -D -m 644 $f $D$(MANDIR)/man$(subst .,,$(suffix $f))/$(notdir $f)$(nl))
	$(if $(wildcard completions/dlock.bash),$(INSTALL) -D -m 644 completions/dlock.bash $D$(BASHCOMPDIR)/dlock)
	$(if $(wildcard completions/_dlock),$(INSTALL) -D -m 644 completions/_dlock $D$(ZSHCOMPDIR)/_dlock)
	$(if $(wildcard completions/dlock.fish),$(INSTALL) -D -m 644 completions/dlock.fish $D$(FISHCOMPDIR)/dlock.fish)
	$(INSTALL) -D -m 644 tmpfiles/dlock.conf $D$(TMPFILESDIR)/dlock.conf
	$(INSTALL) -D -m 755 packaging/prometheus/dlock-textfile $D$(DATADIR)/dlock/dlock-textfile
	$(if $(DOCDIR),$(foreach f,$(EXAMPLES),$(INSTALL) -D -m 644 lib/examples/$f $D$(DOCDIR)/examples/$f$(nl)))
	@# A boot, or a package manager, makes the directory from that file; here it is needed now.
	@# "Root" in a container may not be able to make it, and may not need it.
	if [ -z $D ] && [ "$$(id -u)" = 0 ]; then \
	    $(INSTALL) -d -m 1777 -o root -g root /run/dlock || echo 'warning: /run/dlock is missing; users may need it for @NAME' >&2; fi

uninstall: ## remove what install put there
	rm -f $(addprefix $D,$(INSTALLED))
	@rmdir $D$(MODDIR) $D$(DATADIR)/dlock 2>/dev/null || :
	@$(if $(DOCDIR),rmdir $D$(DOCDIR)/examples $D$(DOCDIR) 2>/dev/null || :)
	@[ -n $D ] || rmdir /run/dlock 2>/dev/null || : # not while it has locks

INSTALLED = $(BINDIR)/dlock $(addprefix $(MODDIR)/,tls.so postgres.so mysql.so zookeeper.so) $(INCLUDEDIR)/dlock.h $(PKGCONFIGDIR)/libdlock.pc \
    $(addprefix $(LIBDIR)/,libdlock.a libdlock.so libdlock.so.$(SOMAJOR) libdlock.so.$(VERSION)) \
    $(BASHCOMPDIR)/dlock $(ZSHCOMPDIR)/_dlock $(FISHCOMPDIR)/dlock.fish $(TMPFILESDIR)/dlock.conf \
    $(DATADIR)/dlock/dlock-textfile $(if $(DOCDIR),$(addprefix $(DOCDIR)/examples/,$(EXAMPLES))) \
    $(foreach f,$(MAN),$(MANDIR)/man$(subst .,,$(suffix $f))/$(notdir $f))

dist: ## the last commit as $(BUILD)/dlock-VERSION.tar.xz, the same bytes in each clone
	@mkdir -p $(BUILD)
	@git diff --quiet HEAD || echo 'warning: changes that are not committed are left out' >&2
	git -c tar.umask=0022 archive --prefix=dlock-$(VERSION)/ -o $(BUILD)/$(DIST:.xz=) HEAD
	xz -9 -T1 -f $(BUILD)/$(DIST:.xz=)
	@cd $(BUILD) && sha256sum $(DIST) >$(DIST).sha256 && cat $(DIST).sha256
DIST := dlock-$(VERSION).tar.xz

html: ## the manual as linked pages, $(BUILD)/dlock-html-VERSION and its archive
	@BUILD=$(BUILD) MANDOC='$(MANDOC)' packaging/html $(VERSION)

REVISION ?= 1
# Not below $(BUILD): after `sudo make deb` that would belong to root, and `make` would fail.
deb: ## Debian packages in build-deb: REVISION=1
	@tests/deps deb
	@BUILD=$(BUILD) packaging/deb $(REVISION)

image: ## a static dlock for files and Redis, and an OCI image of it, in $(BUILD)/image
	@tests/deps image
	@BUILD=$(BUILD) packaging/image

clean: ## remove $(BUILD) and the packages
	rm -rf $(BUILD) build-deb

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^=#]*## \(.*\)/\1|\2/p' Makefile tests/tests.mk | \
	    while IFS='|' read -r t d; do printf '  %-12s %s\n' "$$t" "$$d"; done
	@echo
	@echo '  variables:   PREFIX DESTDIR BINDIR LIBDIR MANDIR ... CC CFLAGS LDFLAGS BUILD V=1'
	@echo '               WITH_REDIS=builtin|no  WITH_POSTGRES=module|builtin|no'
	@echo '               WITH_MYSQL=module|builtin|no  WITH_ZOOKEEPER=module|builtin|no'
	@echo '               WITH_TLS=module|builtin|no'
	@echo '               SAN=address,undefined|thread  WERROR=1'

MAN := $(wildcard man/*.[1-8])
EXAMPLES := $(notdir $(wildcard lib/examples/*.[a-z]*))
define nl


endef
# A make of our own after `deps`: what the first one found out about the compiler may be out of
# date.
SUBMAKE = $(MAKE) --no-print-directory $(if $(findstring jobserver,$(MAKEFLAGS)),,-j$(JOBS))

# ------------------------------------------------------------------ rules ---

# $(call stamp,TEXT,HEADERS,CFLAGS,WITH_X): rewritten only when TEXT has changed, and when the
# HEADERS are there. Another user than the builder may install what is built, but cannot change it.
define stamp
	@mkdir -p $(@D)
	@printf '%s\n' $(call quoted,$(1)) | cmp -s - $@ || { \
	    for h in $(2); do \
	        echo "#include <$$h>" | $(CC) $(3) $(USER_FLAGS) -E -x c - >/dev/null 2>&1 || { \
	            echo "make: <$$h> not found: run 'make deps', or build with $(4)=no" >&2; exit 1; }; \
	    done; \
	    [ -w $(@D) ] || { echo "make: $(BUILD) was built with other variables or sources ($(@F)), and you cannot write there:" \
	        "repeat those of the build, or set BUILD to a folder of your own" >&2; exit 1; }; \
	    printf '%s\n' $(call quoted,$(1)) > $@.$$$$ && mv -f $@.$$$$ $@; }
endef

# Every object depends on these flags.
FLAGS_NOW = $(subst $(HERE),,$(CC_ALL)) | $(PROGRAM) | $(USER_FLAGS)
$(BUILD)/flags: FORCE
	$(call stamp,$(FLAGS_NOW))

# What is linked, and how: a file that was removed leaves no newer prerequisite behind.
SOURCES = $(sort $(LIB_SRC) $(foreach x,$(PARTS),$($x_SRC) $($x_ENGINE)) $(CLI_SRC) $(FAKE_SRC) $(LUA_SRC) $(LUA_PARTS) $(SQL_SRC) $(MY_SQL_SRC))
$(BUILD)/sources: FORCE
	$(call stamp,$(SOURCES) | $(LINK) $(LDFLAGS) | $(LIBS) | $(LIBS_SO))

# Which build it is, and where it will be installed.
BUILD_NOW = $(BUILD_ID) $(PREFIX) $(LIBDIR) $(INCLUDEDIR) $(MODDIR)
$(BUILD)/build-id: FORCE
	$(call stamp,$(BUILD_NOW))

each_obj = $(foreach d,/ /pic/ /test/ /mod/,$(1:%.c=$O$d%.o))
ID_OBJ := $(call each_obj,lib/module.c cli/main.c lib/tls/openssl.c lib/backends/postgres/postgres.c lib/backends/mysql/mysql.c lib/backends/zookeeper/zookeeper.c)
$(ID_OBJ): $(BUILD)/build-id
$(ID_OBJ): ID = -DDLOCK_BUILD_ID='"$(BUILD_ID)"' -DDLOCK_MODDIR='"$(MODDIR)"'

# The objects of a part depend on its own flags too, for the rest of the program is built without
# its library. Those of a module are made apart from those of the same source that are built in.
define part_rules
$(BUILD)/$(call lower,$(1))-flags: FORCE
	$$(call stamp,$$(subst $(GEN),,$$($(1)_CFLAGS)) | $$($(1)_LIBS) $$($(1)_MOD_LIBS),$$($(1)_HEADERS),$$($(1)_CFLAGS),WITH_$(1))
$(call each_obj,$($(1)_SRC)): $(BUILD)/$(call lower,$(1))-flags
$(call each_obj,$($(1)_SRC)): PART = $$($(1)_CFLAGS)
$($(1)_SRC:%.c=$O/mod/%.o): PART = $$($(1)_CFLAGS) $$($(1)_MOD_CFLAGS)
$(call module_of,$(1)): $(patsubst %.c,$O/mod/%.o,$($(1)_SRC) $($(1)_ENGINE))
$(call module_of,$(1)): private MOD_LIBS = $$(or $$($(1)_MOD_LIBS),$$($(1)_LIBS))
endef
$(foreach x,$(PARTS),$(eval $(call part_rules,$x)))

$(BUILD)/with-flags: FORCE
	$(call stamp,$(WITH_DEFS))
$(call each_obj,lib/registry.c): $(BUILD)/with-flags
$(call each_obj,lib/registry.c): PART = $(WITH_DEFS)

# The Lua scripts of Redis, as C strings.
$(BUILD)/gen/redis_scripts.h: lib/backends/redis/scripts/embed.awk $(LUA_SRC) $(LUA_PARTS) $(BUILD)/sources
	$(call say,LUA,$@)
	@mkdir -p $(@D)
	$(Q)awk -f $< $(LUA_SRC) > $@
$(call each_obj,lib/backends/redis/script.c): $(BUILD)/gen/redis_scripts.h

# The SQL of the stores, as C strings.
$(BUILD)/gen/postgres_sql.h: lib/backends/table/embed.awk $(SQL_SRC) $(BUILD)/sources
	$(call say,SQL,$@)
	@mkdir -p $(@D)
	$(Q)awk -f $< $(SQL_SRC) > $@
$(call each_obj,$(POSTGRES_SRC)): $(BUILD)/gen/postgres_sql.h
$(BUILD)/gen/mysql_sql.h: lib/backends/table/embed.awk $(MY_SQL_SRC) $(BUILD)/sources
	$(call say,SQL,$@)
	@mkdir -p $(@D)
	$(Q)awk -v prefix=my -f $< $(MY_SQL_SRC) > $@
$(call each_obj,lib/backends/mysql/lease.c): $(BUILD)/gen/mysql_sql.h

# A guard that does not see all of the library's traffic is none.
ifneq ($(ZK_WRAP),)
$(call module_of,ZOOKEEPER): $(BUILD)/zk-calls
$(BUILD)/zk-calls: FORCE
	@mkdir -p $(@D)
	@lib/backends/zookeeper/wire/check-calls $@ $(ZK_ARCHIVE) $(ZK_CALLS)
endif

# For the shared library the map file decides what is visible.
PROGRAM = $(if $(ONE_KIND),-fPIC,-fvisibility=hidden -fPIE)
$O/%.o: %.c $(BUILD)/flags
	$(call say,CC,$<)
	@mkdir -p $(@D)
	$(Q)$(CC_ALL) $(PROGRAM) $(PART) $(ID) $(DEP) $(USER_FLAGS) -c -o $@ $<

$O/pic/%.o: %.c $(BUILD)/flags
	$(call say,CC,$< (pic))
	@mkdir -p $(@D)
	$(Q)$(CC_ALL) -fPIC $(PART) $(ID) $(DEP) $(USER_FLAGS) -c -o $@ $<

$O/mod/%.o: %.c $(BUILD)/flags
	$(call say,CC,$< (module))
	@mkdir -p $(@D)
	$(Q)$(CC_ALL) -fPIC -DDLOCK_MODULE $(PART) $(ID) $(DEP) $(USER_FLAGS) -c -o $@ $<

$(BUILD)/dlock: $(CLI_OBJ) $(LIB_OBJ) $(BUILD)/sources
	$(call say,LD,$@)
	$(Q)$(LINK) -pie -o $@ $(filter %.o,$^) $(LDFLAGS) $(LIBS)

# One object, in which only what the map file lists is global: a program may have a function of any
# other name. For COVERAGE the program and the library must share their counters' names.
$(BUILD)/libdlock.a: $(LIB_OBJ) lib/libdlock.map $(BUILD)/sources
	$(call say,AR,$@)
	$(Q)$(CC) $(CFLAGS) $(NO_LTO) -r -nostdlib -o $O/libdlock.o $(filter %.o,$^)
	$(Q)sed -n 's/^\t\(dlock_[a-z_]*\);$$/\1/p' lib/libdlock.map > $O/libdlock.keep
	$(if $(COVERAGE),,$(Q)$(OBJCOPY) --keep-global-symbols=$O/libdlock.keep $O/libdlock.o)
	$(Q)rm -f $@ && $(AR) qcsD $@ $O/libdlock.o
# With -flto gcc would write its own format, which has no symbols.
NO_LTO = $(if $(filter -flto%,$(CFLAGS)),$(shell $(CC) -flinker-output=nolto-rel -E -x c /dev/null >/dev/null 2>&1 && echo -flinker-output=nolto-rel))

$(BUILD)/libdlock.so.$(SOMAJOR): $(PIC_OBJ) lib/libdlock.map $(BUILD)/sources
	$(call say,LD,$@)
	$(Q)$(LINK) -shared -Wl,-soname,libdlock.so.$(SOMAJOR) -Wl,--version-script=lib/libdlock.map \
	    $(NO_UNDEF) -o $@ $(PIC_OBJ) $(LDFLAGS) $(LIBS_SO)

$(BUILD)/libdlock.so: $(BUILD)/libdlock.so.$(SOMAJOR)
	$(Q)ln -sf $(<F) $@

# What of the library a module may have a copy of: helpers. Whoever drags in the core does not link.
$(BUILD)/pic.a: $(PIC_OBJ) $(BUILD)/sources
	$(call say,AR,$@)
	$(Q)rm -f $@ && $(AR) qcsD $@ $(filter-out $(CORE:%=$(PIC)/lib/%.o),$(PIC_OBJ))
CORE := registry module handle lock blocking

# Modes that the loader accepts, whatever the umask is.
$(BUILD)/dlock-modules/%.so: $(BUILD)/pic.a $(BUILD)/sources
	$(call say,LD,$@)
	@$(INSTALL) -d -m 755 $(@D)
	@echo '{ global: dlock_module; local: *; };' > $@.map
	$(Q)$(LINK) -shared -Wl,--version-script=$@.map $(NO_UNDEF) -o $@ \
	    $(filter %.o,$^) $(BUILD)/pic.a $(LDFLAGS) $(MOD_LIBS) -pthread
	@rm -f $@.map; chmod 755 $@

$(BUILD)/libdlock.pc: Makefile $(BUILD)/sources $(BUILD)/build-id lib/dlock.h
	$(Q)printf '%s\n' 'prefix=$(PREFIX)' 'libdir=$(LIBDIR)' 'includedir=$(INCLUDEDIR)' '' \
	    'Name: libdlock' 'Description: locks with leases on files and networked stores' \
	    'Version: $(VERSION)' 'Libs: -L$${libdir} -ldlock' 'Libs.private: $(LIBS_SO)' \
	    'Cflags: -I$${includedir}' > $@

include tests/tests.mk

FORCE:
.SUFFIXES:
.DELETE_ON_ERROR:
.PHONY: all demo deps lint format install uninstall dist html deb image clean help FORCE

# Not those of a build below this one, which may be under way.
-include $(shell find $O $(BUILD)/unit $(BUILD)/fuzzers $(BUILD)/test -name '*.d' 2>/dev/null)

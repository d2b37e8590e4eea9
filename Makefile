# For PGXN and others who expect `make && make install`: PG_CONFIG names the server. The build itself is CMakeLists.txt.
PG_CONFIG ?= pg_config
BUILD ?= build

all:
	cmake -S . -B $(BUILD) -D PG_CONFIG="$(shell command -v $(PG_CONFIG))" -D OUTBOX_TESTS=OFF -D CMAKE_UNITY_BUILD=ON
	+cmake --build $(BUILD)

install:
	cmake --install $(BUILD)

installcheck:
	regress/run.sh

clean:
	rm -rf $(BUILD)

.PHONY: all install installcheck clean

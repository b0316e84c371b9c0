module github.com/leasehold-go/leasehold/proof/sim

go 1.25.0

require (
	github.com/alicebob/miniredis/v2 v2.40.0
	github.com/leasehold-go/leasehold v0.0.0
	github.com/redis/rueidis v1.0.79
	github.com/tetratelabs/wazero v1.12.0
	github.com/yuin/gopher-lua v1.1.1
	go.uber.org/goleak v1.3.0
)

require (
	github.com/google/uuid v1.6.0 // indirect
	github.com/minio/highwayhash v1.0.4 // indirect
	golang.org/x/sys v0.47.0 // indirect
)

replace github.com/leasehold-go/leasehold => ../../

module github.com/leasehold-go/leasehold/scripts/sbom

go 1.25.0

require (
	github.com/CycloneDX/cyclonedx-go v0.12.0
	github.com/google/licensecheck v0.3.1
	go.uber.org/goleak v1.3.0
)

package bloom

var (
	Hash     = hash
	Indexes  = indexes
	SizeOf   = sizeOf
	Kryo5    = kryo5
	JavaText = javaText
	ShardOf  = shard
	Estimate = estimate
)

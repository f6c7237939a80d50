package redisnode

import _ "embed"

var (
	//go:embed extend.lua
	extendSource string
	//go:embed release.lua
	releaseSource string
)

// Extend and Release are described at the top of their files.
var (
	Extend  = NewScript(extendSource)
	Release = NewScript(releaseSource)
)

// PublishCommand is the command that reaches the subscribers of a channel.
func PublishCommand(cluster bool) string {
	if cluster {
		return "SPUBLISH"
	}
	return "PUBLISH"
}

package sshmux

func newSSHDPeer(h *Host) peer { return &shimPeer{host: h} }

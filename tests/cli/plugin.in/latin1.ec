on call { return 1; } // ä

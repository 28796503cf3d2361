on call { } on call { }

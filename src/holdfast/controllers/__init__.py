"""The controller runtime: cache, informers, work queue, runner, leader election, and the commit of outcomes."""
